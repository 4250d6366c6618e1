"""How the crude samples of one source are cooked: by which cooker, with which file stores.

Enters: a source and a task encoder. Leaves: cooked samples. Guarantee: what is wrong with cookers or auxiliary data, of
a source that is known to be crude, is found when this is made, before the first sample is read.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.plan import Source
from bridge_data.samples import CrudeSample
from bridge_data.task.cooking import CACHE, PRIMARY, Cooker, choose_cooker, stores_at_hand
from bridge_data.task.hooks import hook_of, is_overridden
from bridge_data.task.stores import FileStore, open_aux, open_primary
from bridge_data.task.task_encoder import TaskEncoder


class SourceCook:
    """Cooks the crude samples of `source` by the hook `cook_crude_sample` of `encoder`: called with the sample, and, if
    it takes them, with the cooker and its file stores.

    Raises:
        ConfigError: if no cooker takes them, or two do, or the one that does cannot be called with what there is.
    """

    def __init__(self, source: Source, encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        self._source, self._encoder = source, encoder
        self._hook = hook_of(encoder, "cook_crude_sample")
        self._takes_cooker = _obstacle(self._hook, None, None, None) is None
        if issubclass(source.sample_class, CrudeSample):
            _ = self._prepared

    def __call__(self, sample: CrudeSample) -> Any:
        """The cooked sample."""
        cooker, stores = self._prepared
        token = stores_at_hand.set(stores)
        try:
            return self._hook(sample, cooker, stores) if self._takes_cooker else self._hook(sample)
        finally:
            stores_at_hand.reset(token)

    @functools.cached_property
    def _prepared(self) -> tuple[Cooker[Any] | None, Mapping[str, FileStore[Any]]]:
        """The cooker, None if the hook cooks by itself, and the stores that it may read."""
        source, encoder = self._source, self._encoder
        stores = open_aux(source, encoder.decoder)
        if is_overridden(encoder, "cook_crude_sample") and not self._takes_cooker:
            if any(cooker.need_primary for cooker in encoder.cookers):  # it may go on to any of them
                stores |= self._primary(stores)
            return None, stores
        cooker = choose_cooker(encoder.cookers, source.subflavors, f"samples of {source.path} [{source.split_part}]")
        if cooker.need_primary:
            stores |= self._primary(stores)
        if cooker.need_cache:
            self._refuse(CACHE, stores)
        names = [*stores, *([CACHE] if cooker.need_cache else [])]
        obstacle = _obstacle(cooker.cook, None, **dict.fromkeys(names))
        if obstacle is not None:
            call = ", ".join(["sample", *(f"{name}=..." for name in names)])
            raise ConfigError(
                f"cooker {cooker.name}: {obstacle}, when it is called as {cooker.name}({call}) for samples of "
                f"{source.path} [{source.split_part}]. Its parameters are the sample and, by keyword, all that the "
                "metadataset names in `aux`; `primary` and `cache` if @cooker(need_primary=True, need_cache=True) asks"
            )
        return cooker, stores

    def _primary(self, stores: Mapping[str, FileStore[Any]]) -> dict[str, FileStore[Any]]:
        self._refuse(PRIMARY, stores)
        return {PRIMARY: open_primary(self._source, self._encoder.decoder)}

    def _refuse(self, name: str, stores: Mapping[str, FileStore[Any]]) -> None:
        if name in stores:
            raise ConfigError(
                f"auxiliary data of {self._source.path} are called {name!r}, which is something else to a cooker that "
                "needs it; give them another name"
            )


def _obstacle(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str | None:
    """Why a function cannot be called with so many arguments and these keywords; None if it can, or will not say."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
