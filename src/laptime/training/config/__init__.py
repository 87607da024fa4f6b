"""A training's configuration: one schema, read from TOML, YAML or XML, with the reason for every value."""

from laptime.training.config.schema import Config, LoaderConfig

__all__ = ["Config", "LoaderConfig"]
