"""A factory for each sample class: prepared folders of captioned images, of texts, and so on."""

from bridge_data.plan.factories import DefaultDecoderWebdatasetFactory
from bridge_data.samples import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)


class CaptioningWebdataset(DefaultDecoderWebdatasetFactory[CaptioningSample]):
    """A prepared folder of images with captions."""

    __sample_type__ = CaptioningSample


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A prepared folder of samples as they are, which a cooker turns into others."""

    __sample_type__ = CrudeSample


class ImageClassificationWebdataset(DefaultDecoderWebdatasetFactory[ImageClassificationSample]):
    """A prepared folder of images with labels."""

    __sample_type__ = ImageClassificationSample


class ImageWebdataset(DefaultDecoderWebdatasetFactory[ImageSample]):
    """A prepared folder of images."""

    __sample_type__ = ImageSample


class InterleavedWebdataset(DefaultDecoderWebdatasetFactory[InterleavedSample]):
    """A prepared folder of documents in which texts and images take turns."""

    __sample_type__ = InterleavedSample


class MultiChoiceVQAWebdataset(DefaultDecoderWebdatasetFactory[MultiChoiceVQASample]):
    """A prepared folder of questions about images, with the answers to choose from."""

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(DefaultDecoderWebdatasetFactory[OCRSample]):
    """A prepared folder of images of text."""

    __sample_type__ = OCRSample


class SimilarityInterleavedWebdataset(DefaultDecoderWebdatasetFactory[SimilarityInterleavedSample]):
    """A prepared folder of documents with texts and images, and how well they match."""

    __sample_type__ = SimilarityInterleavedSample


class TextWebdataset(DefaultDecoderWebdatasetFactory[TextSample]):
    """A prepared folder of texts."""

    __sample_type__ = TextSample


class VidQAWebdataset(DefaultDecoderWebdatasetFactory[VidQASample]):
    """A prepared folder of questions about videos."""

    __sample_type__ = VidQASample


class VQAOCRWebdataset(DefaultDecoderWebdatasetFactory[VQAOCRSample]):
    """A prepared folder of questions about images of text."""

    __sample_type__ = VQAOCRSample


class VQAWebdataset(DefaultDecoderWebdatasetFactory[VQASample]):
    """A prepared folder of questions about images."""

    __sample_type__ = VQASample
