import pickle

import pytest

from bridge_data.data.records import counts_of
from bridge_data.errors import ConfigError
from bridge_data.plan import EmptySplitError, load_plan
from bridge_data.samples import CaptioningSample, CrudeSample
from tests.plan.prepared import CAPTIONING, CRUDE, write_meta

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\n"


@pytest.fixture
def folder(tmp_path):
    """Four data sets beside each other: a 10 + 5 samples, b 7, c 3 crude ones, and one that is empty in val."""
    counts = {"0.tar": 6, "1.tar": 4, "2.tar": 5}
    write_meta(tmp_path / "a", counts, {"train": ["0.tar", "1.tar"], "val": ["2.tar"], "test": []})
    write_meta(
        tmp_path / "b", {"x.tar": 7}, {"train": ["x.tar"], "val": ["x.tar"]}, CAPTIONING + "subflavors: {s: b, t: b}\n"
    )
    write_meta(tmp_path / "c", {"x.tar": 3}, {"train": ["x.tar"], "val": []}, CRUDE)
    return tmp_path


def yaml(folder, text, name="blend.yaml"):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + text)
    return path


def refused(path, *says):
    with pytest.raises(ConfigError) as raised:
        load_plan(path)
    assert all(words in str(raised.value) for words in says), raised.value


def test_a_prepared_folder_is_a_plan(folder, monkeypatch):
    monkeypatch.chdir(folder)
    plan = pickle.loads(pickle.dumps(load_plan("a/")))
    (source,) = plan.sources
    assert (source.name, source.path, source.num_samples) == ("a/train", str(folder / "a"), 10)
    assert (counts_of(source.records), plan.num_samples) == ([6, 4], 10)
    assert isinstance(source.parts, frozenset) and source.parts >= {"jpg", "json"} and "txt" not in source.parts
    assert (source.sample_class, source.subflavors, plan.weights) == (CaptioningSample, {}, (1.0,))
    fields = {name: str(access) for name, access in source.field_map.items()}
    assert fields == {"image": "jpg", "caption": "json[caption]"}


def test_nested_blends_multiply(folder):
    yaml(
        folder,
        "splits:\n  train: {blend: [{path: ../a, weight: 3}, {path: ../b}]}\n"
        "  special: {path: ../c, split_part: train}\n",
        "inner/ab.yaml",
    )
    path = yaml(
        folder,
        "splits:\n  train:\n    blend:\n      - {path: inner/ab.yaml, weight: 1}\n"
        "      - {path: inner/ab.yaml, split_part: special, weight: 2}\n"
        "      - {weight: 1, blend: [{path: a, split_part: val}, {path: b}]}\n",
    )
    plan = load_plan(path)
    assert [source.name for source in plan.sources] == ["a/train", "b/train", "c/train", "a/val", "b/train"]
    assert plan.weights == pytest.approx((3 / 16, 1 / 16, 1 / 2, 1 / 8, 1 / 8))


def test_a_blend_for_validation_is_a_sequence(folder):
    path = yaml(
        folder, "splits:\n  val:\n    blend:\n      - {path: a, weight: 5}\n      - {path: c}\n      - {path: b}\n"
    )
    plan = load_plan(path, split_part="val", training=False)
    assert [source.name for source in plan.sources] == ["a/val", "b/val"]
    assert plan.weights is None
    assert "c [val]: CrudeSample, 0 samples" in str(plan)


def test_outer_subflavors_override_inner_ones(folder):
    yaml(folder, "splits: {train: {path: b, subflavors: {s: inner, u: inner}}}", "inner.yaml")
    path = yaml(folder, "splits: {train: {path: inner.yaml, subflavors: {u: outer, v: [1, 2]}}}")
    assert load_plan(path).sources[0].subflavors == {"t": "b", "s": "inner", "u": "outer", "v": [1, 2]}


def test_other_config_files_of_a_folder(folder):
    meta = folder / "a" / ".nv-meta"
    (meta / "crude.yaml").write_text(CRUDE + "part_filter: [jpg, txt]\n")
    (meta / "other.yaml").write_text("split_parts: {train: ['{0..2}.tar']}\nexclude: [1.tar]\n")
    path = yaml(folder, "splits: {train: {path: a, dataset_config: crude.yaml, split_config: other.yaml}}")
    (source,) = load_plan(path).sources
    assert (source.sample_class, counts_of(source.records), source.parts) == (CrudeSample, [6, 5], {"jpg", "txt"})


def test_the_plan_prints_as_a_tree(folder):
    yaml(folder, "splits: {train: {blend: [{path: a, weight: 3}, {path: c}]}}", "inner.yaml")
    text = str(
        load_plan(yaml(folder, "splits: {train: {blend: [{path: inner.yaml, weight: 8}, {path: b, weight: 2}]}}"))
    )
    assert text.replace(str(folder), "") == (
        "blend in /blend.yaml [train]\n"
        "├─ blend in /inner.yaml [train]: weight 8\n"
        "│  ├─ /a [train]: weight 3, 60.00% of draws, CaptioningSample, 10 samples in 2 shards\n"
        "│  └─ /c [train]: weight 1, 20.00% of draws, CrudeSample, 3 samples in 1 shard\n"
        "└─ /b [train]: weight 2, 20.00% of draws, CaptioningSample, 7 samples in 1 shard"
    )


@pytest.mark.parametrize(
    ("path", "part", "is_empty", "told"),
    [
        ("a", "test", True, "'test' is declared and has no samples"),
        ("blend.yaml", "val", True, "'val' is declared and has no samples"),
        ("blend.yaml", "test", True, "'test' is declared and has no samples"),
        ("blend.yaml", "dev", True, "'dev' is declared and has no samples"),
        ("blend.yaml", "vall", False, "blend.yaml:3: splits: no split 'vall' is declared; did you mean 'val'.* dev"),
        (
            "blend.yaml",
            "q",
            False,
            r"no split 'q' is declared\. Known: .*\. If there are no such data, say so: `q:` alone$",
        ),
        ("b", "test", False, "no split part 'test'.* train, val"),
    ],
)
def test_empty_splits_and_unknown_ones_are_told_apart(folder, path, part, is_empty, told):
    yaml(folder, "splits:\n  train: {path: a}\n  val: {path: c}\n  test:\n  dev: {blend: []}\n")
    with pytest.raises(ConfigError, match=told) as refused:
        load_plan(folder / path, split_part=part, training=False)
    assert isinstance(refused.value, EmptySplitError) is is_empty


def test_an_empty_source_in_a_training_blend_is_no_empty_split(folder):
    path = yaml(folder, "splits:\n  val:\n    blend:\n      - path: a\n      - path: c\n")
    with pytest.raises(ConfigError, match=r"blend.yaml:7: this item of the blend has no samples in split part 'val'"):
        load_plan(path, split_part="val")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "splits:\n  train:\n    blend:\n      - path: a\n        weight: 0\n",
            "blend.yaml:5: blend: all weights are 0 from sample 0 on, so nothing could be drawn",
        ),
        (
            "splits: {train: {blend: [{path: a, weight: -1.5}]}}",
            "blend.yaml:3: weight: expected a finite number of 0 or more, got -1.5",
        ),
        ("splits: {train: {blend: [{path: a, weight: much}]}}", "weight: expected a number, got 'much'"),
        (
            "splits:\n  train:\n    blend:\n      - path: a\n        wieght: 2\n",
            "blend.yaml:7: item of a blend: unknown key 'wieght'; did you mean 'weight'?",
        ),
        ("splits:\n  train:\n    path: a\n    weight: 2\n", "blend.yaml:6: split 'train': unknown key 'weight'"),
        (
            "splits:\n  train:\n    paht: a\n",
            "blend.yaml:4: split 'train': expected `path:`, `blend:`, `blend_epochized:` or `join:`, got a mapping",
        ),
        ("splits:\n  train: a\n", "blend.yaml:4: split 'train': expected a mapping, got 'a'"),
        ("splits:\n  train: {blend: {path: a}}\n", "blend: expected a list, got a mapping"),
        ("splits:\n  train: {blend: [a]}\n", "item of a blend: expected a mapping, got 'a'"),
        ("splits:\n  train:\n    path: nowhere\n", "nowhere: no such folder or file"),
        ("splits:\n  train:\n    path: a/.nv-meta/.info.json\n", "blend.yaml:5: "),
        ("splits:\n  train: {path: 'hdfs://host/a'}\n", "unknown kind of URL"),
        ("splits:\n  train: {path: blend.yaml}\n", "refers to itself"),
        ("splits:\n  train: {path: a, dataset_config: no.yaml}\n", "no.yaml: no such file"),
        ("splits:\n  train: {path: a, split_config: no.yaml}\n", "no.yaml: no such file"),
        ("splits:\n  train: {path: a, split_part: dev}\n", "no split part 'dev'"),
        ("split:\n  train: {path: a}\n", "blend.yaml:3: metadataset: unknown key 'split'; did you mean 'splits'?"),
        ("", "splits is missing"),
        ("splits: [\n", "not readable as YAML"),
        (
            "splits:\n  train: {path: a, shuffle_over_epochs_multiplier: 0}\n",
            "blend.yaml:4: shuffle_over_epochs_multiplier: got 0, expected a number of epochs from 1 on",
        ),
        ("splits:\n  train:\n    join: []\n", "blend.yaml:5: join: expected data sets, got none"),
        ("splits:\n  train:\n    path: a\n    aux: {x: b}\n", "blend.yaml:6: aux is for crude samples"),
        (
            "splits:\n  train:\n    path: a\n    subset: {range: [0, 11]}\n",
            "blend.yaml:6: subset: range: [0, 11] reaches",
        ),
        ("splits:\n  train:\n    path: b\n    subset: {range: [0%, 9%]}\n", "leaves none of the 7 samples of b/train"),
        (
            "splits:\n  train:\n    subset: {range: [0, 5]}\n    blend: [{path: a}]\n",
            "blend.yaml:5: subset: range: [0, 5]: sample numbers are for a single data set",
        ),
        ("splits: {train: {path: $NOT_SET/a}}\n", "$NOT_SET/a: the environment variable NOT_SET is not set"),
    ],
)
def test_mistakes_are_named_with_file_and_line(folder, text, says):
    refused(yaml(folder, text), says)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("__class__: MetadatasetV2\n", "__module__ is missing"),
        ("__module__: megatron.energon\n", "__class__ is missing"),
        ("__module__: os\n__class__: MetadatasetV2\n", "m.yaml:1: __module__: got 'os'"),
        (
            "__module__: megatron.energon\n__class__: MetadataSetV2\n",
            "m.yaml:2: __class__: 'MetadataSetV2' is no metadataset; did you mean 'MetadatasetV2'?",
        ),
        (
            "__module__: megatron.energon\n__class__: Metadataset\n",
            "m.yaml:3: split 'train': expected `datasets:`, got a mapping with path; `path:`, `blend:` and the like",
        ),
        ("", "m.yaml:1: split 'train': expected `datasets:`"),
    ],
)
def test_other_heads_are_refused(folder, head, says):
    (folder / "m.yaml").write_text(head + "splits: {train: {path: a}}\n")
    refused(folder / "m.yaml", says)


def test_paths_that_hold_no_data_set(folder):
    refused(folder / "nowhere", "nowhere: no such folder or file")
    (folder / "raw").mkdir()
    (folder / "raw" / "cat.jpg").write_bytes(b"")
    refused(folder / "raw", "neither a .nv-meta folder nor tars", f"bridge-data convert {folder / 'raw'} DST")
    (folder / "x.jsonl").write_text("{}\n")
    refused(folder / "x.jsonl", "not prepared, there is no x.jsonl.idx", "bridge-data prepare")
    (folder / "a" / ".nv-meta" / "dataset.yaml").unlink()
    refused(folder / "a", "dataset.yaml: no such file", "bridge-data prepare")
