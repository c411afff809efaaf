"""What the tests of the checker share."""

from grown_trees import grown_trees

__all__ = ["grown_trees"]
