"""Keys of a task encoder: equal for encoders that make the same of every sample.

Reads an encoder, and the source of its samples. Returns hex digits, the same in all processes and runs: a hash of the
classes' names, the code of those outside this package and installed ones, and the attributes: settings, the tokenizer
as it is stored, processors as their `to_dict`. Caches (`functools.cached_property`) and what `__getstate__` leaves out
do not count. Raises `ConfigError` for an attribute that cannot be told that way.

`costs_key` is for the same number of tokens, on all machines: paths do not count. `content_keys` are for the same
content, on this machine: what functions and methods of the user refer to counts, too (functions, classes, global
values, as deep as they go), and so do paths, this package's code, and the versions of what is installed.

With `costs_version` in its class, an encoder says by itself when its costs change: that text counts instead of its
code, and attributes of unknown kinds do not count. For its content, `memo_version` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import pickle
import platform
import re
import sys
import sysconfig
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample

if TYPE_CHECKING:
    from bridge_data.plan import Source

COST_RULES = 1
"""Raised when our own encoders count differently."""

_OF_PLACE = {"name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "vocab_file", "tokenizer_file"}
_PER_CALL = ("truncation", "padding")
"""Settings that a call of a tokenizer leaves in it."""

_INSTALLED = tuple(
    path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(name))
)


def costs_key(encoder: Any, source: Source | None = None) -> str:
    """See the module; `source` None: of the encoder alone."""
    told = [COST_RULES, _Teller(encoder).told(encoder, type(encoder).__qualname__)]
    if source is not None:
        told.append([_of_source(encoder, one) for one in {source: 0, **dict.fromkeys(source.members)}])
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8).hexdigest()


def content_keys(encoder: Any, sources: Sequence[Source]) -> list[str]:
    """For each source, see the module; it does not count which data it has, but how samples are made of them."""
    own = [_environment(), _Teller(encoder, of_content=True).told(encoder, type(encoder).__qualname__)]
    of_encoder = _digest(json.dumps(own, sort_keys=True).encode())
    return [_content_key(encoder, of_encoder, source) for source in sources]


def _content_key(encoder: Any, of_encoder: str, source: Source) -> str:
    teller = _Teller(encoder, of_content=True)
    told: list[Any] = [of_encoder]
    for one in {source: 0, **dict.fromkeys(source.members)}:
        joiner = None if one.joined is None else one.joined.joiner
        makers = [teller.told(made, one.config_file) for made in (one.sample_class, one.maker, joiner)]
        settings = [one.limits, one.parts, sorted(one.values), one.format, dict(one.subflavors)]
        told.append([_of_source(encoder, one), makers, teller.told(settings, one.config_file)])
    return _digest(json.dumps(told, sort_keys=True).encode())


@functools.cache
def _environment() -> list[Any]:
    """The code of this package, and the versions of Python and of all installed packages."""
    own = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        own.update(str(path.relative_to(root)).encode() + path.read_bytes())
    folders = [*map(Path, dict.fromkeys(path for path in _INSTALLED if path.endswith("packages")))]
    installed = {path.name for folder in folders if folder.is_dir() for path in folder.glob("*.dist-info")}
    return [own.hexdigest(), sys.version, platform.machine(), sorted(installed)]


def _of_source(encoder: Any, source: Source) -> list[Any]:
    """How samples are made of the data, as far as it is not in the data: fields, and which cookers take them."""
    is_crude = issubclass(source.sample_class, CrudeSample)
    cookers = [cooker.is_match(source.subflavors) for cooker in encoder.cookers] if is_crude else []
    fields = sorted((name, str(access)) for name, access in source.field_map.items())
    maker = None if source.maker is None else type(source.maker).__qualname__
    joiner = None if source.joined is None else getattr(source.joined.joiner, "__qualname__", "")
    return [source.sample_class.__qualname__, fields, cookers, maker, joiner, sorted(source.aux)]


class _Teller:
    """Tells objects as plain data."""

    def __init__(self, encoder: Any, *, of_content: bool = False) -> None:
        self._of_content = of_content
        self._setting = "memo_version" if of_content else "costs_version"
        self._version: str | None = getattr(encoder, self._setting, None)
        self._seen: dict[int, tuple[int, Any]] = {}  # functions, classes and modules told before
        self._users = {cls.__module__.partition(".")[0] for cls in type(encoder).__mro__} - {"bridge_data"}
        self._open: list[Any] = []

    def told(self, value: Any, where: str) -> Any:
        """`value` as plain data; `where` it is, for messages."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, (bytes, bytearray)):
            return _digest(value)
        if isinstance(value, enum.Enum):
            return [type(value).__qualname__, value.name]
        if isinstance(value, Path):
            return ["a path", str(value) if self._of_content else value.name]
        if isinstance(value, re.Pattern):
            return [value.pattern, value.flags]
        if any(value is one for one in self._open):
            return "above"
        self._open.append(value)
        try:
            return self._inner(value, where)
        finally:
            self._open.pop()

    def _inner(self, value: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            items = ((self.told(key, where), self.told(one, f"{where}[{key!r}]")) for key, one in value.items())
            return [type(value).__qualname__, *sorted(items, key=_sortable)]
        kind = [type(value).__qualname__] if self._of_content else []
        if isinstance(value, Set):
            return kind + sorted((self.told(one, where) for one in value), key=_sortable)
        if isinstance(value, Sequence):
            return kind + [self.told(one, f"{where}[{number}]") for number, one in enumerate(value)]
        if isinstance(value, functools.partial):
            return [self.told(one, where) for one in (value.func, value.args, value.keywords)]
        if inspect.isclass(value):
            return self._class(value)
        if inspect.ismethod(value):
            return [value.__name__, self.told(value.__self__, f"{where}.__self__")]
        if inspect.isroutine(value):
            return self._named(value, where)
        known = _known(value)
        if known is not None:
            return [type(value).__qualname__, self.told(known, where)]
        return self._object(value, where)

    def _object(self, value: Any, where: str) -> Any:
        if dataclasses.is_dataclass(value):
            state: Any = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            state = value.__getstate__() if hasattr(value, "__dict__") or self._is_own(type(value)) else None
            if isinstance(state, tuple) and len(state) == 2:  # of a class with slots
                state = {**(state[0] or {}), **(state[1] or {})}
            elif state is None and self._is_own(type(value)):
                state = {}
        if not isinstance(state, dict):
            if self._version is not None:
                return type(value).__qualname__
            raise ConfigError(
                f"{where}: an encoder with a {type(value).__name__} cannot be told from another one, whose samples may "
                f"be others. Set `{self._setting} = '1'` in its class, and change it with the code"
            )
        if hasattr(type(value), "costs_key"):  # an encoder: its class may hold these, too
            state = {"decoder": value.decoder, "cookers": value.cookers, **state}
        own = {
            name: self.told(one, f"{where}.{name}")
            for name, one in sorted(state.items())
            if name not in getattr(type(value), "NOT_COSTS", ())
            and not isinstance(getattr(type(value), name, None), functools.cached_property)
        }
        return [self._class(type(value)), own]

    def _class(self, cls: type) -> Any:
        """Its name, and the code of all its classes that may change."""
        return [cls.__qualname__, *(self._named(one, cls.__qualname__) for one in cls.__mro__ if self._is_own(one))]

    def _named(self, value: Any, where: str) -> Any:
        """The name of a class or a function, and its code if it may change."""
        if not self._is_own(value):
            return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"
        if self._version is not None:
            return [value.__qualname__, self._version]
        if self._of_content:
            if id(value) in self._seen:
                return ["above", self._seen[id(value)][0]]
            self._seen[id(value)] = len(self._seen), value
        try:
            told = [value.__qualname__, textwrap.dedent(_source_of(inspect.unwrap(value)))]
        except (OSError, TypeError) as error:
            raise ConfigError(
                f"{where}: the code of {value.__qualname__} cannot be read, so it is unknown when it changes: set "
                f"`{self._setting} = '1'` in the encoder's class, and change it with the code"
            ) from error
        if held := _held_by(inspect.unwrap(value)):
            told.append(self.told(held, f"{where} (its closure)"))
        if self._of_content:
            told.append(self._used(value, where))
        return told

    def _used(self, owner: Any, where: str) -> list[Any]:
        """What a function, or the methods of a class, refer to; and the other values of the class."""
        told: list[Any] = []
        functions = _functions_of(owner)
        if inspect.isclass(owner):
            for name, value in sorted(vars(owner).items()):
                if found := _functions_of(value):
                    functions += found
                elif not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl":
                    told.append([name, self._global(value, f"{where}.{name}")])
        for function in functions:
            told.append([_source(function), *(self._global(one, where) for one in _held_by(function))])
            _import_own(function)
            told.append(self._referred(_names_in(function.__code__), function.__globals__, where))
        return told

    def _referred(self, names: Set[str], scope: Mapping[str, Any], where: str) -> list[Any]:
        """The values of those `names` that `scope` has, or that are modules; None of others."""
        told: list[Any] = []
        for name in sorted(names):
            value = scope.get(name, _module(name, scope.get("__package__")))
            if not inspect.ismodule(value):
                told.append([name, self._global(value, f"{where}: {name}")])
            elif self._is_own(value) and id(value) not in self._seen:
                self._seen[id(value)] = len(self._seen), value
                told.append([name, self._referred(names, vars(value), where)])
                del self._seen[id(value)]
        return told

    def _global(self, value: Any, where: str) -> Any:
        """`value`; one of an unknown kind as its pickle, or else by its class."""
        is_plain = isinstance(value, (Mapping, Set, Sequence)) or inspect.isclass(value) or inspect.isroutine(value)
        is_ours = type(value).__module__.partition(".")[0] == "bridge_data" or self._is_own(type(value))
        with contextlib.suppress(ConfigError):
            if is_plain or is_ours or value is None or _known(value) is not None:
                return self.told(value, where)
        with contextlib.suppress(Exception):
            return [self._class(type(value)), _digest(pickle.dumps(value, protocol=5))]
        return self._class(type(value))

    def _is_own(self, value: Any) -> bool:
        """Whether a class or function is the user's, who may change it."""
        module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or "builtins"
        package = module.partition(".")[0]
        if package in ("bridge_data", "builtins"):
            return False
        if package in self._users and package not in ("typing", "abc"):
            return True
        try:
            return not inspect.getfile(value).startswith(_INSTALLED)
        except TypeError:
            return False


def _held_by(function: Any) -> list[Any]:
    """The defaults of a function, and what it encloses; empty if there are none."""
    held = [getattr(function, name, None) for name in ("__defaults__", "__kwdefaults__")]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is still empty
            if not inspect.isclass(cell.cell_contents):  # as that of `super`
                held.append(cell.cell_contents)
    return [] if held == [None, None] else held


def _source_of(value: Any) -> str:
    with _parsing:
        return inspect.getsource(value)


def _source(function: types.FunctionType) -> str:
    """The code of a function; of one that was generated, compiled."""
    try:
        return _source_of(function.__code__)
    except (OSError, TypeError):
        return _digest(function.__code__.co_code)


def _functions_of(value: Any) -> list[types.FunctionType]:
    """The functions that a function, or an attribute of a class, is made of: those of a property, those wrapped."""
    parts = [getattr(value, name, None) for name in ("fget", "fset", "fdel", "func", "__func__")]
    left, found = [part for part in (value, *parts) if part is not None], []
    while left:
        part = left.pop(0)
        if inspect.isfunction(part):
            found.append(part)
            left += [part.__wrapped__] if hasattr(part, "__wrapped__") else []
    return found


def _module(name: str, package: str | None) -> types.ModuleType | None:
    """The module that a function of `package` may import by `name`."""
    for one in (name, f"{package}.{name}"):
        if one in sys.modules:
            return sys.modules[one]
    return None


def _import_own(function: types.FunctionType) -> None:
    """Import the user's modules that a function imports when it is called."""
    package = function.__globals__.get("__package__")
    for step in dis.get_instructions(function):
        if step.opname == "IMPORT_NAME" and _module(step.argval, package) is None:
            for name in (step.argval, f"{package}.{step.argval}"):
                with contextlib.suppress(Exception):  # the hook will raise it
                    spec = importlib.util.find_spec(name)
                    if spec is not None and not (spec.origin or "built-in").startswith((*_INSTALLED, "built-in")):
                        importlib.import_module(name)


def _names_in(code: types.CodeType) -> set[str]:
    """The global names, attributes and modules in the code of a function, and in functions in it."""
    inner = (_names_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


def _known(value: Any) -> Any:
    """What tells an object of transformers, torch or numpy; None for others."""
    if hasattr(value, "get_vocab") and hasattr(value, "__len__"):
        told = (getattr(value, name, None) for name in ("special_tokens_map", "chat_template", "model_max_length"))
        return [_of_vocabulary(value), *told]
    if hasattr(value, "serialized_model_proto"):
        return value.serialized_model_proto()
    parts = (inspect.getattr_static(value, name, None) for name in ("tokenizer", "image_processor", "to_dict"))
    if None not in parts:  # a processor, not an encoder that opens its own when it is asked for it
        held = [getattr(value, name) for name in getattr(value, "attributes", ("tokenizer", "image_processor"))]
        return [*held, getattr(value, "chat_template", None), _without_places(value.to_dict())]
    if callable(getattr(value, "to_dict", None)):
        return _without_places(value.to_dict())
    if callable(getattr(value, "numpy", None)) and hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        return [str(value.dtype), list(value.shape), value.flatten().view(-1).numpy().tobytes()]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return [str(value.dtype), list(value.shape), value.tobytes()]
    return None


_parsing = threading.Lock()
"""In Python 3.11, two threads that parse code at the same time may fail."""

_vocabularies: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()
"""Of tokenizers, their size and digest: a blend asks for each of its data sets, and a large one takes 0.5 s."""


def _of_vocabulary(tokenizer: Any) -> str:
    """A digest of what a tokenizer makes of texts."""
    size, digest = _vocabularies.get(tokenizer, (0, ""))
    if size != len(tokenizer):
        told: Any = [tokenizer.get_vocab(), [*map(list, getattr(tokenizer, "bpe_ranks", ()))]]
        if hasattr(tokenizer, "backend_tokenizer"):
            told = json.loads(tokenizer.backend_tokenizer.to_str())
            told = {name: one for name, one in told.items() if name not in _PER_CALL}
        digest = _digest(json.dumps(told, sort_keys=True).encode())
        _vocabularies[tokenizer] = len(tokenizer), digest
    return digest


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _OF_PLACE}


def _sortable(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _digest(content: bytes | bytearray) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def count_tokens(sample: Any, length: Callable[[Any], int] | None) -> int:
    """The tokens of an encoded sample: its `length` for packing, or else of its `tokens` or `input_ids`.

    Raises:
        ConfigError: if it has none of these.
    """
    if length is not None:
        return length(sample)
    for name in ("tokens", "input_ids"):
        tokens = sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)
        if tokens is not None:
            return int(tokens.shape[-1]) if hasattr(tokens, "shape") else len(tokens)
    raise ConfigError(
        f"a {type(sample).__name__} has no `tokens` or `input_ids` to count: override `costs` in the task encoder, a "
        "method that returns numbers of an encoded sample, such as {'tokens': 120, 'images': 1}"
    )
