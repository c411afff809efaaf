"""A planned step as one archive that runs on a host without a compiler, a network or pip."""

from autotm.stages.exchange.bundle.make import Bundled, bundle_stage

__all__ = ["Bundled", "bundle_stage"]
