"""A shop on Django: a purchase and its order to the kitchen are one transaction.

    pip install pos-gateway Django "psycopg[binary]"       # psycopg: not with SQLite
    DATABASE_URL=sqlite:///shop.db POS_GATEWAY_BROKER_URL=amqp://... python django_shop.py 8000

    curl -H "Content-Type: application/json" --data-binary @order.json localhost:8000/purchases

In a project of yours ``create_tables`` is a migration (docs/outbox.md), and the relay is started in
gunicorn's ``post_fork``, or runs as ``pos-gateway outbox relay``.
"""

import json
import os
import sys
from urllib.parse import unquote, urlsplit
from wsgiref.simple_server import make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from pos_gateway.client import OrderClient, outbox
from pos_gateway.domain.errors import InvalidOrder

URL = os.environ["DATABASE_URL"]


def database(url):
    """Django's settings for the URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:]}
    return {
        "ENGINE": f"django.db.backends.{parts.scheme.partition('+')[0]}",
        "NAME": parts.path[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


settings.configure(
    DATABASES={"default": database(URL)}, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], USE_TZ=True
)
django.setup()


class Purchase(models.Model):
    """What a customer has paid for."""

    id = models.CharField(primary_key=True, max_length=128)
    total = models.BigIntegerField()

    class Meta:
        app_label = "shop"


@csrf_exempt
@require_POST
def purchase(request):
    """Store the purchase, and with it the order: both, or neither."""
    order = json.loads(request.body)
    try:
        with transaction.atomic():
            Purchase.objects.create(id=order["order_id"], total=order["total"])
            outbox.add(connection, order)
            if request.headers.get("X-Fail"):  # what may happen in any request
                raise RuntimeError("the request failed")
    except InvalidOrder as error:
        fields = [{"field": each.field, "problem": each.problem} for each in error.errors]
        return JsonResponse({"errors": fields}, status=422)
    return JsonResponse({"id": order["order_id"]}, status=201)


urlpatterns = [path("purchases", purchase)]


def create_tables():
    """Purchases and the outbox, if they are not there."""
    known = connection.introspection.table_names()
    with connection.schema_editor() as editor:
        if Purchase._meta.db_table not in known:
            editor.create_model(Purchase)
        if outbox.TABLE not in known:
            for statement in outbox.ddl(connection.vendor):
                editor.execute(statement, None)


if __name__ == "__main__":
    create_tables()
    outbox.Relay(OrderClient(), URL).start()
    make_server("127.0.0.1", int(sys.argv[1]), get_wsgi_application()).serve_forever()
