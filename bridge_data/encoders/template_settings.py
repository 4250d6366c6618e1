"""What a run sets in a chat template: variables, and the date that it writes as today's.

Reads a template and the settings; returns a template that has them in its text, so they are in whatever is kept by it.
Of a date that nobody set, `DATE` is written: with the current one, a resume would make other samples than the run that
it goes on with.
"""

import datetime
import functools
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from bridge_data.errors import ConfigError

logger = logging.getLogger("bridge_data")

DATE = "2024-07-26"
"""Which templates of Llama 3 write where they know of none."""

_DIRECTIVES = ("-d", "-m", "-H", "-I", "-M", "-S", *"YmdBbAajyHIMSpfUWGVucxXwz%")
"""What `strftime` writes of a date."""


def check_variables(setting: str, variables: Mapping[str, Any], date: str | None) -> None:
    """Check the settings, of which `setting` is the beginning of the name.

    Raises:
        ConfigError: for a name or value that a template cannot have, or another form of date.
    """
    for name, value in variables.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{setting}(chat_template_kwargs={{{name!r}: {value!r}}}): expected plain data") from None
        if not (isinstance(name, str) and name.isidentifier()):
            raise ConfigError(f"{setting}(chat_template_kwargs=...): expected names of variables, got {name!r}")
    try:
        datetime.date.fromisoformat(date or DATE)
    except (TypeError, ValueError):
        raise ConfigError(f"{setting}(date={date!r}): expected a date such as '2026-11-30'") from None


def with_settings(template: str, variables: Mapping[str, Any], date: str | None) -> str:
    """The template, with these variables set, and without the current date.

    >>> with_settings("{{ greeting }}!", {"greeting": "hi"}, None)
    "{%- set greeting = 'hi' %}\\n{{ greeting }}!"
    """
    first = "".join(f"{{%- set {name} = {value!r} %}}\n" for name, value in variables.items())
    if re.search(r"\bstrftime_now\b", template):
        if date is None:
            _tell_of_date()
        day = datetime.datetime.combine(datetime.date.fromisoformat(date or DATE), datetime.time())
        written = "".join(f" | replace({'%' + one!r}, {day.strftime('%' + one)!r})" for one in _DIRECTIVES)
        first += f"{{%- macro strftime_now(format) -%}}{{{{ format{written} }}}}{{%- endmacro %}}\n"
    return first + template


@functools.cache  # so that it is logged once
def _tell_of_date() -> None:
    logger.warning(
        "the chat template writes the current date, with which a resume would make other samples: it writes %s in all "
        "of them. ConversationTemplateConfig(date=...) sets another",
        DATE,
    )
