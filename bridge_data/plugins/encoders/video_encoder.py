"""What encoders of conversations about videos share: which samples have videos, and where these stand in the turns."""

from typing import Any

from bridge_data.encoders.conversations import (
    Conversation,
    ConversationSample,
    VideoConversationSample,
    with_placeholders,
)
from bridge_data.encoders.family_encoder import ConversationTaskEncoder
from bridge_data.samples import VidQASample, VQASample


class VideoTaskEncoder(ConversationTaskEncoder):
    """Takes `VideoConversationSample` and questions about videos, besides what other encoders take."""

    @property
    def video_placeholder(self) -> str | None:
        """The text that stands for a video in the turns of a sample; None if the encoder takes none."""
        raise NotImplementedError

    def conversation(self, sample: Any) -> Conversation:
        """The conversation of a sample, without its videos."""
        if self.video_placeholder is None:
            return super().conversation(sample)
        if isinstance(sample, VideoConversationSample):
            fields = {"messages": sample.messages, "images": sample.images, "tools": sample.tools}
            return super().conversation(ConversationSample.derive_from(sample, **fields))
        if isinstance(sample, VidQASample):
            asked: dict[str, Any] = {"image": None, "context": sample.context, "answers": sample.answers}
            asked["answer_weights"] = sample.answer_weights
            return super().conversation(VQASample.derive_from(sample, **asked))
        return super().conversation(sample)

    def videos(self, sample: Any) -> list[Any]:
        """The videos of a sample; override it with `conversation` for your own sample classes."""
        if isinstance(sample, VidQASample):
            return [sample.video]
        return sample.videos if isinstance(sample, VideoConversationSample) else []

    def checked_conversation(self, sample: Any) -> Conversation:
        """The conversation of a sample, with a placeholder for each video."""
        said, placeholder = super().checked_conversation(sample), self.video_placeholder
        if placeholder is None:
            return said
        return with_placeholders(said, placeholder, len(self.videos(sample)), "videos", self.config, sample.__key__)
