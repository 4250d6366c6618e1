import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from bridge_data import ConfigError, MultiModalSampleConfig
from bridge_data.datamodule.settable import assign, settable, settled
from bridge_data.encoders import ConversationTemplateConfig, SamplePolicies


@dataclasses.dataclass
class Open:
    """A dataclass that is not frozen, with one that is."""

    config: MultiModalSampleConfig = dataclasses.field(default_factory=MultiModalSampleConfig)


def test_a_frozen_dataclass_stays_what_it_is_until_a_field_is_set() -> None:
    frozen = MultiModalSampleConfig(patch_size=16)
    opened = settable(frozen)
    assert isinstance(opened, MultiModalSampleConfig)
    assert opened == frozen and frozen == opened and repr(opened) == repr(frozen)
    assert settled(opened, "x") is frozen and settable(opened) is opened
    opened.conversation_template_config.roles = ["user", "assistant"]  # as a list comes back from YAML
    assert settled(opened, "x") is frozen


def test_fields_that_are_set_are_those_of_the_settled_one_at_any_depth() -> None:
    frozen = MultiModalSampleConfig(patch_size=16)
    opened = settable(frozen)
    opened.policies.overlong, opened.conversation_template_config.roles = "skip", ["human", "gpt"]
    for one in (opened, copy.copy(opened), copy.deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        found = settled(one, "x")
        assert type(found) is MultiModalSampleConfig
        assert found == dataclasses.replace(
            frozen,
            policies=SamplePolicies(overlong="skip"),
            conversation_template_config=ConversationTemplateConfig(roles=("human", "gpt")),
        )
    assert dataclasses.replace(opened, patch_size=8).patch_size == 8
    assert frozen.policies.overlong == "truncate" and opened != frozen


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("patch_size", "abc", "it.patch_size: expected int, got abc"),
        ("patch_size", 0, "patch_size=0.: expected at least 1"),
        ("layout", "rows", "it.layout: .*'native', 'bridge'"),
        ("pad_to_max_length", "perhaps", "it.pad_to_max_length: expected bool, got perhaps"),
        ("tokens_per_image", 576.5, "it.tokens_per_image: expected int"),
    ],
)
def test_a_value_that_the_class_refuses_is_an_error_when_it_is_settled(name: str, value: Any, message: str) -> None:
    opened = settable(MultiModalSampleConfig())
    setattr(opened, name, value)
    with pytest.raises(ConfigError, match=message):
        settled(opened, "it")


def test_what_is_not_frozen_stays_the_same_object_and_its_user_gets_frozen_ones() -> None:
    given = Open()
    assert settable(given) is given
    given.config.patch_size = 4  # type: ignore[misc]
    found = settled(given, "x")
    assert type(found.config) is MultiModalSampleConfig and found.config.patch_size == 4
    assert settable(3) == 3 and settled(None, "x") is None


def test_two_classes_with_the_same_fields_are_not_equal() -> None:
    one, other = (dataclasses.make_dataclass(name, [("most", int)], frozen=True)(3) for name in ("One", "Other"))
    assert settable(one) == settable(one) and settable(one) != settable(other) and settable(one) != other


def test_a_field_that_was_not_set_is_kept_whatever_its_value_is() -> None:
    kind = dataclasses.make_dataclass("Table", [("rows", Any), ("kind", type), ("most", int)], frozen=True)
    frozen = kind(np.zeros(3), kind, 1)  # an array, which is not equal by one bool; a class, not an instance of it
    opened = settable(frozen)
    assert settled(opened, "x") is frozen
    opened.most = 2
    found = settled(opened, "x")
    assert found.rows is frozen.rows and found.kind is kind


def test_types_that_cannot_be_read_are_not_checked() -> None:
    kind = dataclasses.make_dataclass("Late", [("most", "Unknown")], frozen=True)
    opened = settable(kind(3))
    opened.most = "4"
    assert settled(opened, "x") == kind("4")


def test_settings_by_name_are_assigned_or_given_back() -> None:
    kept = SamplePolicies(media_tags="keep")
    frozen = MultiModalSampleConfig(patch_size=16, policies=kept)
    changed = settled(assign(frozen, {"policies": {"overlong": "skip"}}), "x")
    assert changed == dataclasses.replace(frozen, policies=dataclasses.replace(kept, overlong="skip"))
    assert assign(changed, {"policies": kept}) == frozen
    assert assign(frozen, {"patch": 3}) == {"patch": 3}
    assert assign(kept, dataclasses.asdict(kept)) == kept  # all of them
    assert frozen == MultiModalSampleConfig(patch_size=16, policies=kept)


def test_lists_stay_lists_and_a_mapping_is_set_where_no_dataclass_is() -> None:
    kind = dataclasses.make_dataclass("Media", [("kinds", tuple), ("names", list), ("sizes", dict)], frozen=True)
    opened = assign(kind(("a",), ["b"], {}), {"kinds": ["c"], "names": ["d"], "sizes": {"e": 1}})
    assert settled(opened, "x") == kind(("c",), ["d"], {"e": 1})
