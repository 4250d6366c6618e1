"""The default task encoder for images and text: chat template, image tokens, labels for answers only, packing."""

from bridge_data.multimodal.config import (
    PLAIN_CHAT_TEMPLATE,
    ConversationTemplateConfig,
    ImageToken,
    MultiModalSampleConfig,
)
from bridge_data.multimodal.conversation import Conversation, ConversationSample
from bridge_data.multimodal.encoder import MultiModalTaskEncoder
from bridge_data.multimodal.sequences import ImageTextBatch, ImageTextSample, TokenizedSample

__all__ = [
    "PLAIN_CHAT_TEMPLATE",
    "Conversation",
    "ConversationSample",
    "ConversationTemplateConfig",
    "ImageTextBatch",
    "ImageTextSample",
    "ImageToken",
    "MultiModalSampleConfig",
    "MultiModalTaskEncoder",
    "TokenizedSample",
]
