"""Task encoders, the user's part of the pipeline: their hooks, and how a hook is called.

    task_encoder  `TaskEncoder`: the hooks, in the order in which they are called; `@stateless`; mapping to own types
    hooks         one call of a hook: seeded generators, counted skips, a bounded number of failures
    hook_names    finds misspelt names of hooks
    generators    the random generators that a hook may use
    cooking       cookers, which make typed samples of crude ones
    samples_key   keys of what an encoder makes of samples, for the memo and the cost index
    packers       which sequences share a pack
    grouping      which samples may be in one batch
    augment       a task encoder around another one
    observer      an object that is called around each stage, for profilers
    stores        auxiliary files of samples: `file_store`, `dataset_store`

Names are imported on first use: `import bridge_data` needs none of these modules.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.task.augment import AugmentTaskEncoder as AugmentTaskEncoder
    from bridge_data.task.cooking import Cooker as Cooker
    from bridge_data.task.cooking import SourceCook as SourceCook
    from bridge_data.task.cooking import basic_sample_keys as basic_sample_keys
    from bridge_data.task.cooking import cooker as cooker
    from bridge_data.task.cooking import fields_in_words as fields_in_words
    from bridge_data.task.cooking import first_parts as first_parts
    from bridge_data.task.grouping import group_by as group_by
    from bridge_data.task.grouping import homogeneous_concat_mix as homogeneous_concat_mix
    from bridge_data.task.grouping import shape_of as shape_of
    from bridge_data.task.grouping import source_of as source_of
    from bridge_data.task.grouping import subflavor as subflavor
    from bridge_data.task.grouping import type_of as type_of
    from bridge_data.task.hook_names import check_hook_names as check_hook_names
    from bridge_data.task.hooks import FAILED as FAILED
    from bridge_data.task.hooks import NO_STAGES as NO_STAGES
    from bridge_data.task.hooks import STAGES as STAGES
    from bridge_data.task.hooks import TRUNCATED as TRUNCATED
    from bridge_data.task.hooks import EncoderHooks as EncoderHooks
    from bridge_data.task.hooks import Hooks as Hooks
    from bridge_data.task.hooks import hook_of as hook_of
    from bridge_data.task.hooks import is_overridden as is_overridden
    from bridge_data.task.packers import Packing as Packing
    from bridge_data.task.task_encoder import DefaultTaskEncoder as DefaultTaskEncoder
    from bridge_data.task.task_encoder import TaskEncoder as TaskEncoder
    from bridge_data.task.task_encoder import stateless as stateless
    from bridge_data.task.task_encoder import with_decoding as with_decoding


_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
