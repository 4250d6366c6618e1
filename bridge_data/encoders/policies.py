"""What happens to conversations that are not as they should be: each case has a declared answer.

`"skip"` leaves the sample out quietly: it is counted in `loader.skipped`. `"error"` makes it a failure (`SampleError`),
which is counted too, goes to the error handler with a message that names the sample, and stops the run once failures in
a row exceed the encoder's tolerance.
"""

import dataclasses
from typing import Literal, NoReturn, TypeAlias, get_args

from bridge_data.errors import ConfigError, SampleError, SkipSample

Policy: TypeAlias = Literal["skip", "error"]
RolesPolicy: TypeAlias = Literal["skip", "error", "keep"]
AnswerPolicy: TypeAlias = Literal["skip", "error", "keep"]
OverlongPolicy: TypeAlias = Literal["truncate", "skip", "error"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplePolicies:
    """`image_mismatch`: placeholders for another number of images than there are. `roles_out_of_order`: a role that is
    not in the settings, a system message that is not the first, an answer without a question, two turns of one role in
    a row ("keep": the chat template may do with them what it does). `empty_answer`: an answer without words ("keep": it
    is learnt to say nothing; a sample of nothing but empty answers is skipped all the same). `overlong`: more tokens
    than a sequence holds ("truncate": it is cut at its end, as a whole image where it would be cut within one, and
    skipped if no answer remains).

    Raises:
        ConfigError: for another word.
    """

    image_mismatch: Policy = "error"
    roles_out_of_order: RolesPolicy = "error"
    empty_answer: AnswerPolicy = "skip"
    overlong: OverlongPolicy = "truncate"

    def __post_init__(self) -> None:
        for name, policy in (
            ("image_mismatch", Policy),
            ("roles_out_of_order", RolesPolicy),
            ("empty_answer", AnswerPolicy),
            ("overlong", OverlongPolicy),
        ):
            check_policy(f"SamplePolicies({name}", getattr(self, name), get_args(policy))


def check_policy(name: str, value: str, known: tuple[str, ...]) -> None:
    """See that a policy is one of those known.

    Raises:
        ConfigError: naming the setting, if it is not.
    """
    if value not in known:
        raise ConfigError(f"{name}={value!r}): expected one of {', '.join(map(repr, known))}")


def refuse(policy: str, key: str, what: str) -> NoReturn:
    """Leave sample `key` out as `policy` says, because of `what`."""
    if policy == "skip":
        raise SkipSample
    raise SampleError(f"sample {key!r}: {what}")
