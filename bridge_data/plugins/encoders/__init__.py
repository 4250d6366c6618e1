"""Task encoders for what is no conversation: documents of texts and pictures, for the model families; pairs of an image
and its text (CLIP, SigLIP); and speech (Whisper).

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
    from bridge_data.plugins.encoders.speech import SpeechBatch as SpeechBatch
    from bridge_data.plugins.encoders.speech import SpeechConfig as SpeechConfig
    from bridge_data.plugins.encoders.speech import SpeechTaskEncoder as SpeechTaskEncoder
    from bridge_data.plugins.encoders.speech import TranscriptionSample as TranscriptionSample
    from bridge_data.plugins.encoders.speech import cook_transcription as cook_transcription

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
