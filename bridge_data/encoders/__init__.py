"""Task encoders for conversations, captions, speech and text: the default one for images and text, and those of model
families, whose batches equal those of transformers' processors.

    conversations ─ chat (template, tokens) ─ visuals (limits, decoding) ─ sequences (labels, packs, batches)
    family_encoder calls them in order; multimodal_encoder, qwen_encoder and hf build on it
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.encoders.contrastive import ContrastiveBatch, ContrastiveConfig, ContrastiveTaskEncoder
    from bridge_data.encoders.conversations import (
        Conversation,
        ConversationSample,
        VideoConversationSample,
        cook_conversation,
    )
    from bridge_data.encoders.encoder_config import (
        PLAIN_CHAT_TEMPLATE,
        ConversationTemplateConfig,
        FamilyConfig,
        ImageLimits,
        ImageToken,
        MultiModalSampleConfig,
        SamplePolicies,
    )
    from bridge_data.encoders.families import (
        IDEFICS3_TEMPLATE,
        INTERNVL_TEMPLATE,
        LLAVA_TEMPLATE,
        QWEN2_VL_TEMPLATE,
        QWEN3_VL_TEMPLATE,
        Idefics3,
        InternVL,
        Llava,
        LlavaNext,
        Qwen2_5VL,
        Qwen2VL,
        Qwen3VL,
        VisionFamily,
    )
    from bridge_data.encoders.family_encoder import ConversationTaskEncoder, FamilyTaskEncoder, text_encoder
    from bridge_data.encoders.hf import HFTaskEncoder
    from bridge_data.encoders.multimodal_encoder import MultiModalTaskEncoder
    from bridge_data.encoders.qwen_encoder import QwenVLBatch, QwenVLTaskEncoder
    from bridge_data.encoders.sequences import (
        FamilyBatch,
        FamilySample,
        ImageTextBatch,
        ImageTextSample,
        TokenizedSample,
    )
    from bridge_data.encoders.speech import (
        LogMel,
        SpeechBatch,
        SpeechConfig,
        SpeechTaskEncoder,
        TranscriptionSample,
        cook_transcription,
    )
    from bridge_data.encoders.text import PretrainingTaskEncoder
    from bridge_data.encoders.visuals import VideoSampling

_NAMES_BY_MODULE = {
    "bridge_data.encoders.contrastive": "ContrastiveBatch ContrastiveConfig ContrastiveTaskEncoder",
    "bridge_data.encoders.conversations": "Conversation ConversationSample VideoConversationSample cook_conversation",
    "bridge_data.encoders.encoder_config": (
        "ConversationTemplateConfig FamilyConfig ImageLimits ImageToken "
        "MultiModalSampleConfig PLAIN_CHAT_TEMPLATE SamplePolicies"
    ),
    "bridge_data.encoders.families": (
        "IDEFICS3_TEMPLATE INTERNVL_TEMPLATE LLAVA_TEMPLATE QWEN2_VL_TEMPLATE QWEN3_VL_TEMPLATE Idefics3 InternVL "
        "Llava LlavaNext Qwen2VL Qwen2_5VL Qwen3VL VisionFamily"
    ),
    "bridge_data.encoders.family_encoder": "ConversationTaskEncoder FamilyTaskEncoder text_encoder",
    "bridge_data.encoders.hf": "HFTaskEncoder",
    "bridge_data.encoders.multimodal_encoder": "MultiModalTaskEncoder",
    "bridge_data.encoders.qwen_encoder": "QwenVLBatch QwenVLTaskEncoder",
    "bridge_data.encoders.sequences": "FamilyBatch FamilySample ImageTextBatch ImageTextSample TokenizedSample",
    "bridge_data.encoders.speech": (
        "LogMel SpeechBatch SpeechConfig SpeechTaskEncoder TranscriptionSample cook_transcription"
    ),
    "bridge_data.encoders.text": "PretrainingTaskEncoder",
    "bridge_data.encoders.visuals": "VideoSampling",
}
"""The public names of each module, which is imported when one of them is first used. Type checkers and editors read the
imports above instead: both must name the same."""

__all__ = [
    "IDEFICS3_TEMPLATE",
    "INTERNVL_TEMPLATE",
    "LLAVA_TEMPLATE",
    "PLAIN_CHAT_TEMPLATE",
    "QWEN2_VL_TEMPLATE",
    "QWEN3_VL_TEMPLATE",
    "ContrastiveBatch",
    "ContrastiveConfig",
    "ContrastiveTaskEncoder",
    "Conversation",
    "ConversationSample",
    "ConversationTaskEncoder",
    "ConversationTemplateConfig",
    "FamilyBatch",
    "FamilyConfig",
    "FamilySample",
    "FamilyTaskEncoder",
    "HFTaskEncoder",
    "Idefics3",
    "ImageLimits",
    "ImageTextBatch",
    "ImageTextSample",
    "ImageToken",
    "InternVL",
    "Llava",
    "LlavaNext",
    "LogMel",
    "MultiModalSampleConfig",
    "MultiModalTaskEncoder",
    "PretrainingTaskEncoder",
    "Qwen2VL",
    "Qwen2_5VL",
    "Qwen3VL",
    "QwenVLBatch",
    "QwenVLTaskEncoder",
    "SamplePolicies",
    "SpeechBatch",
    "SpeechConfig",
    "SpeechTaskEncoder",
    "TokenizedSample",
    "TranscriptionSample",
    "VideoConversationSample",
    "VideoSampling",
    "VisionFamily",
    "cook_conversation",
    "cook_transcription",
    "text_encoder",
]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
