"""Chat templates, rendered as transformers renders them, in Jinja's sandbox."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Const, Node, TemplateData
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from ridgeline_contracts.errors import InvalidRequest, SettingsError

from ridgeline_gateway.template_json import to_json

Message = Mapping[str, Any]


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own type for it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A compiled template. Raises SettingsError when it does not parse.

    `special_names` are the variables that templates expect (bos_token, eos_token, ...); `strftime_now` gives
    the date in a strftime format.
    """

    def __init__(
        self, source: str, special_names: Mapping[str, str], *, strftime_now: Callable[[str], str]
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = strftime_now
        self._special_names = dict(special_names)
        try:
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
        except jinja2.TemplateSyntaxError as error:
            raise SettingsError(f"the model's chat template does not parse: {error}") from error
        self._literals = "\0".join(
            [node.data for node in parsed.find_all(TemplateData)]
            + [node.value for node in parsed.find_all(Const) if isinstance(node.value, str)]
        )

    def mentions(self, text: str) -> bool:
        """Whether the template itself writes `text`."""
        return text in self._literals

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt. Raises InvalidRequest with the template's own words where it refuses the messages."""
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_names,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
