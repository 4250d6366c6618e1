"""Sizes, lengths and rates of images and clips, stored beside the index of samples: `bridge-data prepare --media`."""
