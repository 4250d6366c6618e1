"""Factories such as a user has in a module of his own."""

from bridge_data import BaseWebdatasetFactory, CaptioningSample, DefaultDecoderWebdatasetFactory, Sample, edataclass


@edataclass
class Shouted(Sample):
    text: str
    size: int


class ShoutedWebdataset(DefaultDecoderWebdatasetFactory[Shouted]):
    """Its samples are those of the field map, with more after them."""

    __sample_type__ = Shouted

    def __init__(self, path, *, mark="!", **settings):
        super().__init__(path, **settings)
        self.mark = mark

    def load_sample(self, sample):
        made = super().load_sample(sample)
        made.text = made.text.upper() + self.mark
        return made


class BytesWebdataset(BaseWebdatasetFactory[CaptioningSample]):
    """It does everything itself."""

    __sample_type__ = CaptioningSample

    def load_sample(self, sample):
        caption = sample["txt"].decode()
        return CaptioningSample(
            __key__=sample["__key__"],
            __sources__=sample["__sources__"],
            __subflavors__=self.subflavors,
            image=len(sample),
            caption=caption,
        )


class NothingWebdataset(DefaultDecoderWebdatasetFactory[Shouted]):
    """It forgets to return a sample."""

    __sample_type__ = Shouted

    def load_sample(self, sample):
        super().load_sample(sample)
