"""How a command fails: a sentence on standard error and an exit code, no traceback."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import click

from pos_gateway.cli.exit_codes import CONFIG, INTERRUPTED, NOT_DONE
from pos_gateway.cli.text import printable
from pos_gateway.domain.errors import InvalidRecord, InvalidSettings, PosGatewayError


class Failure(click.ClickException):
    """Ends the command; every line of the message is for a person."""

    def __init__(self, message: str, *, exit_code: int = NOT_DONE) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: object = None) -> None:
        for line in self.message.splitlines():
            click.echo(f"pos-gateway: {printable(line)}", err=True)


@contextmanager
def in_words() -> Iterator[None]:
    """Turn this package's and the system's errors into a Failure; Ctrl-C into its exit code."""
    try:
        yield
    except InvalidSettings as error:
        raise Failure(_lines(error), exit_code=CONFIG) from error
    except InvalidRecord as error:
        raise Failure(_lines(error)) from error
    except PosGatewayError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader of our output is gone; click exits silently
        raise Failure(str(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def _lines(error: InvalidRecord) -> str:
    return "\n".join(str(each) for each in error.errors)
