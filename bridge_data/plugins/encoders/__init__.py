"""Task encoders of Qwen-VL, and of any processor of transformers; and those for what is no conversation: documents of
texts and pictures, for the model families; pairs of an image and its text (CLIP, SigLIP); and speech (Whisper).

    qwen_encoder     conversations about images and videos, with M-RoPE positions; `qwen_families` knows what these
                     families make of an image or video
    hf               conversations to the batches of any processor of transformers
    driven_processor calls a processor for one conversation, after it was tried; `joining` makes packs and batches of
                     its outputs, `packed_models` knows what models need of packs
    video_encoder    what encoders of conversations about videos share
    documents        texts and pictures without a chat template; `document_rows` knows the forms of published ones
    contrastive      pairs of an image and its text
    speech           clips with their transcripts

A run finds them by name: `task_encoder: {class_path: bridge_data.plugins.encoders.SpeechTaskEncoder, init_args: ...}`.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
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
