"""``pos-gateway outbox`` among the other commands; ``outbox_program.py`` is the program."""

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def outbox(arguments: tuple[str, ...]) -> None:
    """Submit what a backend's database commits."""
    from pos_gateway.cli.outbox_program import main

    raise click.exceptions.Exit(main(arguments))
