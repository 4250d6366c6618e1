"""Task encoders for conversations, captions and text: the default one for images and text, and those of model
families, whose batches equal those of transformers' processors.

    conversations ─ chat (template) ─ tokens ─ visuals (limits, decoding) ─ sequences (labels, packs, batches)
    family_encoder calls them in order; multimodal_encoder builds on it, and encoders of the plug-in `encoders` do: of
    Qwen-VL, of any processor of transformers, of documents, pairs and speech

    token_ids       ids without offsets; where tokens end, of tokenizers that cut bytes
    chat_turns      the form in which a template reads turns: text, or parts
    chat_answers    where the answers are in what it writes
    chat_frames     what a template writes around the texts of a chat, so where its answers are
    template_settings  variables and the date of a template
    chat_fields     what the fields of chats mean: used, harmless, or refused by name
    tool_calls      tools, calls of them and what they return, in the forms of published chats
    fitting_class   what fits samples that are no chats, for their errors
    sample_media    images and videos of a crude sample: its parts, or files that it names
    visual_settings what a sample says of one image or video: pixels, frames, times
    families        what each family makes of an image: sizes, tiles, tokens
    pixel_table     pixel values from bytes, in one pass, on any device
    layouts         what batches look like: ours, or that of Megatron-Bridge
    encoder_config  settings, with their defaults and checks; what is done with bad samples
    text            an encoder of its own, without conversations
    pretrained      opens tokenizers, processors and configs

A new family is a `VisionFamily` in `families`, named here and in `visuals._MADE_FOR`.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.encoders.conversations import Conversation as Conversation
    from bridge_data.encoders.conversations import ConversationSample as ConversationSample
    from bridge_data.encoders.conversations import VideoConversationSample as VideoConversationSample
    from bridge_data.encoders.conversations import cook_conversation as cook_conversation
    from bridge_data.encoders.encoder_config import PLAIN_CHAT_TEMPLATE as PLAIN_CHAT_TEMPLATE
    from bridge_data.encoders.encoder_config import ConversationTemplateConfig as ConversationTemplateConfig
    from bridge_data.encoders.encoder_config import FamilyConfig as FamilyConfig
    from bridge_data.encoders.encoder_config import ImageLimits as ImageLimits
    from bridge_data.encoders.encoder_config import ImageToken as ImageToken
    from bridge_data.encoders.encoder_config import MultiModalSampleConfig as MultiModalSampleConfig
    from bridge_data.encoders.encoder_config import SamplePolicies as SamplePolicies
    from bridge_data.encoders.families import Idefics3 as Idefics3
    from bridge_data.encoders.families import InternVL as InternVL
    from bridge_data.encoders.families import Llava as Llava
    from bridge_data.encoders.families import LlavaNext as LlavaNext
    from bridge_data.encoders.families import VisionFamily as VisionFamily
    from bridge_data.encoders.family_encoder import ConversationTaskEncoder as ConversationTaskEncoder
    from bridge_data.encoders.family_encoder import FamilyTaskEncoder as FamilyTaskEncoder
    from bridge_data.encoders.family_encoder import text_encoder as text_encoder
    from bridge_data.encoders.multimodal_encoder import MultiModalTaskEncoder as MultiModalTaskEncoder
    from bridge_data.encoders.sequences import FamilyBatch as FamilyBatch
    from bridge_data.encoders.sequences import FamilySample as FamilySample
    from bridge_data.encoders.sequences import ImageTextBatch as ImageTextBatch
    from bridge_data.encoders.sequences import TokenizedSample as TokenizedSample
    from bridge_data.encoders.text import PretrainingTaskEncoder as PretrainingTaskEncoder
    from bridge_data.encoders.visual_settings import Visual as Visual
    from bridge_data.encoders.visual_settings import VisualSettings as VisualSettings
    from bridge_data.encoders.visuals import VideoSampling as VideoSampling
    from bridge_data.plugins.encoders.contrastive import ContrastiveBatch as ContrastiveBatch
    from bridge_data.plugins.encoders.contrastive import ContrastiveConfig as ContrastiveConfig
    from bridge_data.plugins.encoders.contrastive import ContrastiveTaskEncoder as ContrastiveTaskEncoder
    from bridge_data.plugins.encoders.document_rows import MissingPicture as MissingPicture
    from bridge_data.plugins.encoders.document_rows import cook_document as cook_document
    from bridge_data.plugins.encoders.documents import DocumentConfig as DocumentConfig
    from bridge_data.plugins.encoders.documents import DocumentTaskEncoder as DocumentTaskEncoder
    from bridge_data.plugins.encoders.documents import QwenVLDocumentTaskEncoder as QwenVLDocumentTaskEncoder
    from bridge_data.plugins.encoders.hf import HFTaskEncoder as HFTaskEncoder
    from bridge_data.plugins.encoders.qwen_encoder import QwenVLBatch as QwenVLBatch
    from bridge_data.plugins.encoders.qwen_encoder import QwenVLTaskEncoder as QwenVLTaskEncoder
    from bridge_data.plugins.encoders.qwen_families import Qwen2_5VL as Qwen2_5VL
    from bridge_data.plugins.encoders.qwen_families import Qwen2VL as Qwen2VL
    from bridge_data.plugins.encoders.qwen_families import Qwen3VL as Qwen3VL
    from bridge_data.plugins.encoders.speech import SpeechBatch as SpeechBatch
    from bridge_data.plugins.encoders.speech import SpeechConfig as SpeechConfig
    from bridge_data.plugins.encoders.speech import SpeechTaskEncoder as SpeechTaskEncoder
    from bridge_data.plugins.encoders.speech import TranscriptionSample as TranscriptionSample
    from bridge_data.plugins.encoders.speech import cook_transcription as cook_transcription

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
