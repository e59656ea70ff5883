"""``pos-gateway merchants set`` and ``edit``: change one merchant's record by hand."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from pos_gateway.audit.note import By
from pos_gateway.cli import jsonl, options, output
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.merchants import administration, known_to
from pos_gateway.cli.text import json_text
from pos_gateway.domain.errors import InvalidRecord
from pos_gateway.merchants.admin import Seen
from pos_gateway.merchants.assignments import assign, is_secret, require_name
from pos_gateway.merchants.masked import Document

#: Maximum bytes of a value that is read from a file.
_LARGEST = 2**20


@click.command("set", short_help="Change fields of one.")
@click.argument("merchant_id", metavar="ID")
@click.argument("assignments", metavar="FIELD=VALUE...", nargs=-1, required=True)
@options.reason
@options.by_operator
def set_(merchant_id: str, assignments: Sequence[str], reason: str | None, operator: str) -> None:
    """Change fields of the merchant with this ID; all others stay as they are.

    The record is checked as an import checks it. FIELD= removes a field. No secret has to be known to
    change another field.

    A VALUE is a text, @FILE, or - for standard input. A secret is never taken from the command line,
    which other users and the shell's history see: give auth.token=@FILE, auth.token=-, or auth.token
    alone, to be asked for it. @@ is an @ at the beginning of a text.

    \b
    Examples:
      pos-gateway merchants set m1 max_concurrency=8 request_timeout=5 --reason 'slow at noon'
      pos-gateway merchants set m1 pos.location_id=L2 provider=
      pos-gateway merchants set m1 auth.token=@token.txt
      pos-gateway merchants set m1 auth= auth.type=bearer auth.token

    Exit code: 0, or 1 if nothing was written.
    """
    sources = _sources(assignments)
    with administration() as admin:
        known_to(admin, merchant_id)  # before any secret is asked for
    values = {name: _value(name, source) for name, source in sources.items()}

    def edit(record: Document) -> Document:
        for name, value in values.items():
            assign(record, name, value)
        return record

    with administration() as admin:
        try:
            changed = admin.change(merchant_id, edit, by=By(operator, reason), what="merchants.set")
        except InvalidRecord as error:
            raise Failure(_problems(error)) from None
    _say(merchant_id, changed)


@click.command(short_help="Change one in an editor.")
@click.argument("merchant_id", metavar="ID")
@options.reason
@options.by_operator
def edit(merchant_id: str, reason: str | None, operator: str) -> None:
    """Change the record of the merchant with this ID as JSON in $VISUAL or $EDITOR.

    A secret is shown as ********, which means "unchanged"; replace it to change it. The record is
    checked as an import checks it. If it was changed by another operator meanwhile, nothing is written.

    \b
    Example:
      EDITOR=nano pos-gateway merchants edit m1 --reason 'moved to another terminal'

    Exit code: 0, or 1 if nothing was written.
    """
    with administration() as admin:
        seen = known_to(admin, merchant_id)
    text = json_text(seen.document, indent=2) + "\n"
    with TemporaryDirectory(prefix="pos-gateway-") as folder:  # for this user alone
        path = Path(folder) / "merchant.json"
        path.write_text(text, encoding="utf-8")
        while True:
            click.edit(filename=str(path))
            try:
                changed = _write(merchant_id, path.read_bytes(), seen, By(operator, reason))
                break
            except InvalidRecord as error:
                for line in _problems(error).splitlines():
                    output.notice(line)
                if not (
                    sys.stdin.isatty() and click.confirm("Edit again?", default=True, err=True)
                ):
                    raise Failure("nothing was written") from None
    _say(merchant_id, changed)


def _write(merchant_id: str, text: bytes, seen: Seen, by: By) -> Mapping[str, Any]:
    record = jsonl.decode(text, excerpt=False)
    if not isinstance(record, dict):
        raise Failure("nothing was written: the record is no JSON object any more")
    with administration() as admin:
        return admin.change(
            merchant_id, lambda _: record, by=by, what="merchants.edit", stamp=seen.stamp
        )


def _sources(assignments: Sequence[str]) -> dict[str, str | None]:
    """Each field's source as it was given; None: it is to be asked for."""
    sources: dict[str, str | None] = {}
    for number, each in enumerate(assignments, 1):
        name, is_given, source = each.partition("=")
        place = f"argument {number} after the ID"  # the argument itself may be a misplaced secret
        try:
            require_name(name, place)
        except InvalidRecord as error:
            raise click.UsageError(_problems(error)) from None
        if not is_given and not is_secret(name):
            raise click.UsageError(f"{name}: give {name}=VALUE, or {name}= to remove it")
        if is_secret(name) and is_given and source not in ("", "-") and not source.startswith("@"):
            raise click.UsageError(
                f"{name}: a secret is never taken from the command line, which other users and the "
                f"shell's history see; give {name}=@FILE, {name}=- for standard input, or {name} alone, "
                "to be asked for it. Consider this one as known to others"
            )
        if name in sources:
            raise click.UsageError(f"{name}: is given twice")
        if source == "-" and "-" in sources.values():
            raise click.UsageError(f"{name}: standard input is another field's value already")
        sources[name] = source if is_given else None
    return sources


def _value(name: str, source: str | None) -> str:
    """The value that a source has, without the end of its last line."""
    if source is None:
        return _asked(name)
    if source == "-":
        return _text(name, sys.stdin.buffer.read(_LARGEST + 1))
    if source.startswith("@@") and not is_secret(name):
        return source[1:]
    if not source.startswith("@"):
        return source
    try:
        with Path(source[1:]).open("rb") as file:
            return _text(name, file.read(_LARGEST + 1))
    except (OSError, ValueError) as error:  # its name may be a secret that begins with @
        why = error.strerror if isinstance(error, OSError) else "it cannot be a file's name"
        raise Failure(f"{name}: the file after @ cannot be read: {why}") from None


def _asked(name: str) -> str:
    if not sys.stdin.isatty():
        raise Failure(f"{name}: there is no terminal to ask on; give {name}=@FILE or {name}=-")
    asked: str = click.prompt(name, hide_input=True, err=True)
    return asked


def _text(name: str, data: bytes) -> str:
    if len(data) > _LARGEST:
        raise Failure(f"{name}: is longer than {_LARGEST} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Failure(f"{name}: is not UTF-8") from None
    text = text.rstrip("\r\n")
    if not text:
        raise Failure(f"{name}: what was read is empty; {name}= removes it")
    return text


def _problems(error: InvalidRecord) -> str:
    """Without values, which may be secret."""
    return "\n".join(f"{each.field}: {each.problem}" for each in error.errors)


def _say(merchant_id: str, changed: Mapping[str, Any]) -> None:
    from pos_gateway.audit.log import changes_in_words

    if not changed:
        output.notice("nothing is different, and nothing was written")
        return
    output.line((f"{merchant_id}: {changes_in_words(changed)}", ""))
