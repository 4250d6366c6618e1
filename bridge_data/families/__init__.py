"""Task encoders for the families of models that people train: batches equal to those of transformers' processors."""

from bridge_data.families.config import FamilyConfig, ImageLimits
from bridge_data.families.contrastive import ContrastiveBatch, ContrastiveConfig, ContrastiveTaskEncoder
from bridge_data.families.cooking import cook_conversation
from bridge_data.families.encoder import ConversationTaskEncoder, FamilyTaskEncoder, text_encoder
from bridge_data.families.family import VisionFamily
from bridge_data.families.hf import HFTaskEncoder
from bridge_data.families.idefics3 import IDEFICS3_TEMPLATE, Idefics3
from bridge_data.families.internvl import INTERNVL_TEMPLATE, InternVL
from bridge_data.families.llava import LLAVA_TEMPLATE, Llava
from bridge_data.families.llava_next import LlavaNext
from bridge_data.families.log_mel import LogMel
from bridge_data.families.qwen_encoder import QwenVLBatch, QwenVLTaskEncoder
from bridge_data.families.qwen_vl import QWEN2_VL_TEMPLATE, QWEN3_VL_TEMPLATE, Qwen2_5VL, Qwen2VL, Qwen3VL
from bridge_data.families.samples import FamilyBatch, FamilySample
from bridge_data.families.speech import (
    SpeechBatch,
    SpeechConfig,
    SpeechTaskEncoder,
    TranscriptionSample,
    cook_transcription,
)
from bridge_data.families.text import PretrainingTaskEncoder
from bridge_data.families.videos import VideoConversationSample, VideoSampling
from bridge_data.multimodal.policies import SamplePolicies

__all__ = [
    "IDEFICS3_TEMPLATE",
    "INTERNVL_TEMPLATE",
    "LLAVA_TEMPLATE",
    "QWEN2_VL_TEMPLATE",
    "QWEN3_VL_TEMPLATE",
    "ContrastiveBatch",
    "ContrastiveConfig",
    "ContrastiveTaskEncoder",
    "ConversationTaskEncoder",
    "FamilyBatch",
    "FamilyConfig",
    "FamilySample",
    "FamilyTaskEncoder",
    "HFTaskEncoder",
    "Idefics3",
    "ImageLimits",
    "InternVL",
    "Llava",
    "LlavaNext",
    "LogMel",
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
    "TranscriptionSample",
    "VideoConversationSample",
    "VideoSampling",
    "VisionFamily",
    "cook_conversation",
    "cook_transcription",
    "text_encoder",
]
