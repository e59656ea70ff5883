"""The root command: its subcommands, and their errors."""

import click

from pos_gateway import __version__
from pos_gateway.cli.failure import in_words
from pos_gateway.cli.groups import Group, Lazy

#: In the order in which a new user needs them.
COMMANDS = {
    "demo": Lazy("pos_gateway.cli.demo:demo", "See it work on this machine, with nothing set up."),
    "doctor": Lazy("pos_gateway.cli.doctor:doctor", "Say what is right and wrong here."),
    "settings": Lazy("pos_gateway.cli.settings:settings", "Show every setting and its value."),
    "db": Lazy("pos_gateway.cli.db:db", "Bring the database's schema to this version."),
    "declare": Lazy(
        "pos_gateway.cli.declare:declare", "Declare the broker's exchanges and queues."
    ),
    "merchants": Lazy(
        "pos_gateway.cli.merchants:merchants", "Import, change, pause and show merchants."
    ),
    "adapters": Lazy(
        "pos_gateway.cli.adapters:adapters", "List adapters; write a package for a new POS."
    ),
    "secrets": Lazy("pos_gateway.cli.secrets:secrets", "Keys for the merchants' secrets."),
    "tokens": Lazy("pos_gateway.cli.tokens:tokens", "Who may use the HTTP server."),
    "worker": Lazy("pos_gateway.cli.worker:worker", "Send orders to merchants: run a worker."),
    "serve": Lazy("pos_gateway.cli.serve:serve", "Take orders over HTTP, and serve events."),
    "enqueue": Lazy("pos_gateway.cli.enqueue:enqueue", "Put orders on the broker."),
    "cancel": Lazy("pos_gateway.cli.enqueue:cancel", "Ask for an order to be cancelled."),
    "orders": Lazy("pos_gateway.cli.orders:orders", "Look orders up; decide on those in doubt."),
    "dlq": Lazy("pos_gateway.cli.dlq:dlq", "Administer dead letters."),
    "runs": Lazy("pos_gateway.cli.runs:runs", "Bulk runs: list, stop and resume them."),
    "events": Lazy("pos_gateway.cli.events:events", "Watch what becomes of orders."),
    "outbox": Lazy("pos_gateway.cli.outbox:outbox", "Submit what a backend's database commits."),
    "alerts": Lazy("pos_gateway.cli.alerts:alerts", "What needs a person; try the webhook."),
    "canary": Lazy("pos_gateway.cli.canary:canary", "Move merchants to a canary, and back."),
    "audit": Lazy("pos_gateway.cli.audit:audit", "Say who did what, when and why."),
    "plan": Lazy("pos_gateway.cli.plan:plan", "Say how many workers a load takes."),
    "schema": Lazy("pos_gateway.cli.schema:schema", "Write the generated documents."),
}
#: Names of earlier releases.
ALIASES = {"dead": "dlq"}


class Root(Group):
    """Turns errors of every command into messages."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for each in args:
            if not each.isprintable() and any("\ud800" <= c <= "\udfff" for c in each):
                name, is_given, _ = each.partition("=")  # after it may be a secret
                shown = f"{name}=…" if is_given else each
                raise click.UsageError(
                    f"the argument {shown!a} is not UTF-8; a file of such a name can be given as standard "
                    "input, -"
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with in_words():
            return super().invoke(ctx)


@click.group(
    cls=Root,
    lazy=COMMANDS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="It is configured by POS_GATEWAY_* environment variables: see pos-gateway settings.",
)
@click.version_option(__version__, message="pos-gateway %(version)s")
def root() -> None:
    """Send every order to its merchant's point-of-sale API; no slow merchant delays the others.

    A first run, with RabbitMQ on this machine; docs/quick-start.md has the two files:

    \b
      export POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES=true                  # merchants on this machine
      python -m pos_gateway.simulated_merchants --port 8090 &
      pos-gateway db upgrade
      pos-gateway merchants import merchants.jsonl
      pos-gateway worker                 # in one terminal
      pos-gateway events tail            # in another
      pos-gateway enqueue orders.jsonl   # in a third

    Something is not right? pos-gateway doctor says what.
    """
