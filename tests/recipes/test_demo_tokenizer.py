from pathlib import Path

from recipes.demo_tokenizer import END, IMAGE, PAD, START, train_tokenizer


def test_the_tokenizer_marks_what_the_assistant_says(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    train_tokenizer(["a grey crop of the cat, from the top left, dark"] * 4, tmp_path, vocab_size=300)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert tokenizer.convert_tokens_to_ids([PAD, IMAGE, START, END]) == [0, 1, 2, 3]
    chat = [{"role": "user", "content": f"{IMAGE}{IMAGE}what?"}, {"role": "assistant", "content": "the cat"}]
    encoded = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    answered = [t for t, mine in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mine]
    assert tokenizer.decode(answered) == f"the cat{END}"
    assert encoded["input_ids"].count(1) == 2


def test_the_same_texts_give_the_same_tokenizer(tmp_path: Path) -> None:
    texts = ["a grey crop of the cat", "a red crop of the moon", "what is the main colour?"]
    for name, order in (("one", texts), ("two", texts[::-1])):
        train_tokenizer(order, tmp_path / name, vocab_size=320)
    assert (tmp_path / "one/tokenizer.json").read_text() == (tmp_path / "two/tokenizer.json").read_text()
