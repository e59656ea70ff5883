"""The bodies of HubRise's requests.

Documented: fields, types, enumerations, amounts and decimals as texts, 255 characters of a private ref.

Judgement: a field that no document names, or that HubRise computes, is refused.
"""

from testkit.vendors.fields import Field, Tables, choice, integer, many, text

STATUSES = (
    "new received accepted in_preparation awaiting_shipment awaiting_collection in_delivery completed"
    " rejected cancelled delivery_failed"
)
#: ``8.90 EUR``, ``-0.05 GBP``.
MONEY = r"-?[0-9]+\.[0-9]{2} [A-Z]{3}"
_DECIMAL = r"-?[0-9]+(\.[0-9]+)?"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2})"
_COMMON = {"private_ref": text(255), "ref": text()}
_GUEST = (
    "email first_name last_name gender birth_date company_name phone phone_access_code address_1 address_2"
    " postal_code city state country latitude longitude delivery_notes"
)

TABLES: Tables = {
    "order": {
        **_COMMON,
        "channel": text(),
        "status": choice(STATUSES, required=True),
        "service_type": choice("delivery collection eat_in"),
        "service_type_ref": text(),
        "expected_time": text(pattern=_TIME),
        "confirmed_time": text(pattern=_TIME),
        "customer_notes": text(),
        "seller_notes": text(),
        "collection_code": text(),
        "coupon_codes": many("text"),
        "items": many("item"),
        "discounts": many("discount"),
        "charges": many("charge"),
        "payments": many("payment"),
        "customer": Field("customer"),
        "custom_fields": Field("any"),
    },
    "update": {
        "status": choice(STATUSES),
        "confirmed_time": text(pattern=_TIME),
        "seller_notes": text(),
        "collection_code": text(),
        "private_ref": text(255),
    },
    "item": {
        "private_ref": text(255),
        "product_name": text(required=True),
        "sku_name": text(),
        "sku_ref": text(),
        "price": text(required=True, pattern=MONEY),
        "quantity": text(required=True, pattern=_DECIMAL),
        "tax_rate": text(pattern=_DECIMAL),
        "customer_notes": text(),
        "options": many("option"),
    },
    "option": {
        "option_list_name": text(required=True),
        "name": text(required=True),
        "ref": text(),
        "price": text(pattern=MONEY),
        "quantity": integer(1),
        "removed": Field("boolean"),
    },
    "discount": {
        **_COMMON,
        "name": text(required=True),
        "price_off": text(required=True, pattern=MONEY),
    },
    "charge": {
        **_COMMON,
        "name": text(required=True),
        "price": text(required=True, pattern=MONEY),
        "tax_rate": text(pattern=_DECIMAL),
    },
    "payment": {
        **_COMMON,
        "name": text(),
        "amount": text(required=True, pattern=MONEY),
        "info": Field("any"),
    },
    "customer": {
        **{name: text() for name in _GUEST.split()},
        "sms_marketing": Field("boolean"),
        "email_marketing": Field("boolean"),
    },
}
