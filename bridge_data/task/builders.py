"""Methods that Energon's users override and that nothing would call here, with what to do instead.

There the pipeline is a chain of data set objects, which these methods put together. Here it is fixed, and its parts are
the hooks: a class that overrides such a method is refused when it is defined, rather than used without it.
"""

from bridge_data.errors import ConfigError

_DATA = (
    "say what is read, and with which weights, in the metadataset; leave samples out by SkipSample in a hook; map them "
    "once more by an AugmentTaskEncoder around this one; tell data sets apart by the sample's __subflavors__"
)
_ENCODE = (
    "override encode_sample, or preencode_sample and postencode_sample: they may raise SkipSample, and yield several "
    "samples of one. What is to be done before or after another encoder's goes into an AugmentTaskEncoder around it"
)

BUILDERS = {
    "build_train_datasets": _DATA,
    "build_val_datasets": _DATA,
    "build_encode_sample": _ENCODE,
    "build_cook_crude_sample": "give cookers, or override cook_crude_sample",
    "build_batch": "override batch, encode_batch, batch_group_criterion, or the hooks of packing",
    "_load_dataset": _DATA,
}
"""Energon's methods, and our way to what they were overridden for."""


def refuse_builders(encoder: type) -> None:
    """Check a class of the user.

    Raises:
        ConfigError: if it, or a class that it is mixed with, overrides one of Energon's builders.
    """
    for name, instead in BUILDERS.items():
        if hasattr(encoder, name):
            raise ConfigError(
                f"{encoder.__module__}.{encoder.__qualname__} overrides {name}, which is never called here. "
                f"Instead: {instead}"
            )
