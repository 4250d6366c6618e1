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

Their names are those of `bridge_data.encoders`, as of the encoders that are there.
"""
