"""Decisions on the edges of a step, in their context: what was requested -> groups of operators -> what is executed.

A tree grows from each operator whose value is kept in memory. Its branches are the operators that it reads. Each of
them is applied (its value is read from memory: a leaf), inlined (computed by the same kernel, which reveals what it
reads itself), or recomputed (the same, but as a copy, whose value nobody else reads). So a decision is known by the
path to it from a root, such as `add.7/matmul.6/relu.5`. An operator that is inlined along several paths has branches at
the shortest of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from autotm.fusion.dataflow import CircleError, Dataflow, Grouping, Live
from autotm.model.errors import BadInputError, unknown_name
from autotm.model.fusion import Changed, Decision, Reason

TreePath = tuple[int, ...]
"""The root of a tree, then operators of which each is read by the one before."""


Requested = Mapping[TreePath, Decision]
"""Decisions by path; operators at other paths are applied."""

Choose = Callable[[TreePath, Collection[int]], Decision]
"""Decides on the last operator of a path, told the operators that are computed in the kernel of its reader so far."""


@dataclass(frozen=True)
class Resolved:
    """Requested decisions as far as they can be executed.

    Attributes:
        grouping: of all nodes of the step.
        changed: by path, which decisions are executed otherwise than requested, and why.
    """

    grouping: Grouping
    changed: Mapping[TreePath, Changed]


HasSchedule = Callable[[Live], bool]
"""Whether one kernel can compute the nodes of a group."""


def resolve(dataflow: Dataflow, requested: Requested | Choose, has_schedule: HasSchedule) -> Resolved:
    """Return the groups that decisions ask for; what chooses them is asked once for each path that occurs.

    What would let kernels read one another's values is applied instead. A group that no schedule computes as one kernel
    falls into those that TVM's fusion makes of it.
    """
    given = requested if isinstance(requested, Mapping) else {}
    asked: dict[TreePath, Decision] = {}
    refused: set[TreePath] = set()

    def decide(path: TreePath, inside: Collection[int]) -> Decision:
        if path not in asked:
            asked[path] = requested(path, inside) if callable(requested) else given.get(path, Decision.APPLY)
        return Decision.APPLY if path in refused else asked[path]

    while True:
        trees = _Trees(dataflow, decide)
        joined = trees.grouping
        grouping, stuck = _split(dataflow, joined, has_schedule)
        copies = [path for path, decision in trees.decided.items() if decision is Decision.RECOMPUTE]
        if not stuck:
            break
        refused.update(path for path in copies if path[-1] in stuck)
    changed: dict[TreePath, Changed] = {}
    for path, wanted in {**{path: asked[path] for path in trees.decided}, **given}.items():
        if path not in trees.decided:
            changed[path] = Changed(None, Reason.HIDDEN)
        elif (own := decision_at(grouping, path)) is not wanted:
            is_split = path in refused or decision_at(joined, path) is wanted
            changed[path] = Changed(own, Reason.UNSCHEDULED if is_split else trees.reasons.get(path, Reason.INSIDE))
    return Resolved(grouping, changed)


def executed(dataflow: Dataflow, grouping: Grouping) -> dict[TreePath, Decision]:
    """Return the decisions that ask for a grouping, those of operators that are applied included."""
    paths = _Trees(dataflow, lambda path, _: decision_at(grouping, path)).decided
    return {path: decision_at(grouping, path) for path in paths}


def decision_at(grouping: Grouping, path: TreePath) -> Decision:
    """Return what becomes of the last operator of a path where the others are grouped so."""
    *readers, read = path
    group = grouping.home[readers[0]]
    for reader in readers[1:]:
        group = group if reader in grouping.groups[group] else grouping.home[reader]
    if grouping.home[read] == group:
        return Decision.INLINE
    return Decision.RECOMPUTE if read in grouping.groups[group] else Decision.APPLY


def path_text(dataflow: Dataflow, path: TreePath) -> str:
    """Return a path as files have it."""
    return "/".join(dataflow.nodes[place].name for place in path)


def path_of(dataflow: Dataflow, text: str) -> TreePath:
    """Return the path that a file has as text.

    Raises:
        BadInputError: there is no such operator, or one does not read the next.
    """
    names = text.split("/")
    for name in names:
        if name not in dataflow.by_name:
            raise unknown_name("operator", name, dataflow.by_name)
    path = tuple(dataflow.by_name[name] for name in names)
    for reader, read in itertools.pairwise(path):
        if read not in dataflow.nodes[reader].reads:
            known = ", ".join(filter(None, (dataflow.nodes[place].name for place in dataflow.nodes[reader].reads)))
            raise BadInputError(
                f"'{text}': {dataflow.nodes[reader].name} does not read {dataflow.nodes[read].name}; of this step's "
                f"operators it reads {known or 'none'}"
            )
    if len(path) == 1:
        raise BadInputError(f"'{text}': a path needs two operators or more, of which each reads the next")
    return path


class _Trees:
    """Trees that grow from the last operator to the first, and the groups that they make.

    Everything that reads a value is in its kernel before the value is. A group is known by one of its nodes.

    Attributes:
        decided: what was decided at each path.
        reasons: why that is not what was asked for.
    """

    def __init__(self, dataflow: Dataflow, decide: Choose) -> None:
        self.decided: dict[TreePath, Decision] = {}
        self.reasons: dict[TreePath, Reason] = {}
        self._dataflow = dataflow
        places = range(len(dataflow.nodes))
        self._home = {place: place for place in places}
        self._members = {place: {place} for place in places}
        self._within: list[set[int]] = [{place} for place in places]  # The groups that compute each node.
        operators, grown = {*dataflow.operators}, set()
        waiting: list[tuple[int, int, TreePath, bool]] = [(-root, _MANY, (root,), False) for root in operators]
        heapq.heapify(waiting)
        while waiting:
            _, _, path, is_copied = heapq.heappop(waiting)
            if len(path) == 1:
                grows = path[0] not in grown
            else:
                asked = decide(path, self._members[self._home[path[0]]])
                grows = self._decide(path, asked, is_copied=is_copied)
                is_copied = self.decided[path] is Decision.RECOMPUTE
                grows = grows and (is_copied or path[-1] not in grown)
            if grows:
                if not is_copied:
                    grown.add(path[-1])
                for read in operators.intersection(dataflow.nodes[path[-1]].reads):
                    heapq.heappush(waiting, (-read, len(path), (*path, read), is_copied))

    @property
    def grouping(self) -> Grouping:
        """The groups that were made."""
        numbers = {group: index for index, group in enumerate(self._members)}
        groups = tuple(tuple(sorted(members)) for members in self._members.values())
        return Grouping(groups, {place: numbers[group] for place, group in self._home.items()})

    def _decide(self, path: TreePath, asked: Decision, *, is_copied: bool) -> bool:
        """Execute what is asked of the last operator of a path; return whether it is new to the kernel."""
        group, read = self._home[path[0]], path[-1]
        is_new, other = False, self._home[read]
        if read in self._members[group]:
            own, reason = Decision.INLINE if other == group else Decision.RECOMPUTE, Reason.INSIDE
        elif asked is Decision.INLINE and not is_copied:
            own, reason = Decision.INLINE, Reason.CIRCLE
            if self._is_read_between(other, group):
                own = Decision.APPLY
            else:
                is_new = True
                self._merge(group, other)
        elif asked is Decision.APPLY or read in self._dataflow.compared:
            own, reason = Decision.APPLY, Reason.COMPARED
        else:
            # No circle closes: what a copy reads is computed before the group already, as the operator itself was.
            own, reason, is_new = Decision.RECOMPUTE, Reason.COPIED, True
            self._members[group].add(read)
            self._within[read].add(group)
        self.decided[path] = own
        if own is not asked:
            self.reasons[path] = reason
        return is_new

    def _merge(self, group: int, other: int) -> None:
        for place in self._members.pop(other):
            self._members[group].add(place)
            self._within[place].discard(other)
            self._within[place].add(group)
            if self._home[place] == other:
                self._home[place] = group

    def _is_read_between(self, first: int, last: int) -> bool:
        """Return whether the last group reads what a third one computes from values of the first."""
        seen, waiting = {first}, [first]
        while waiting:
            group = waiting.pop()
            for place in self._members[group]:
                if self._home[place] != group:
                    continue
                for reader in self._dataflow.readers[place]:
                    for later in self._within[reader] - seen:
                        if place in self._members[later]:
                            continue
                        if later == last:
                            if group != first:
                                return True
                            continue
                        seen.add(later)
                        waiting.append(later)
        return False


_MANY = 1 << 30
"""Longer than any path: a node is a root only if it was put into no kernel along a path."""


def _split(dataflow: Dataflow, grouping: Grouping, has_schedule: HasSchedule) -> tuple[Grouping, set[int]]:
    """Return a grouping in which groups without a schedule have become those that TVM's fusion makes of them.

    Also return the operators of those of which this would separate a copy from what reads it, so that kernels would
    read one another's values: one of them is such a copy.
    """
    stuck: set[int] = set()
    copied: set[int] = set()
    is_changed = True
    while is_changed:  # What others read of a group changes with them.
        is_changed = False
        for index, live in dataflow.live(grouping).items():
            if len(live.nodes) == 1 or index in stuck or has_schedule(live):
                continue
            unneeded = [(place,) for place in grouping.groups[index] if place not in live.nodes]
            parts = [*dataflow.split(live), *unneeded]
            if len(parts) == 1:
                continue  # TVM's fusion would make the same group.
            # Of copies that were split from what reads them nobody has a use.
            first, *others = [part for part in parts if any(grouping.home[place] == index for place in part)]
            groups = [*grouping.groups[:index], first, *grouping.groups[index + 1 :], *others]
            home = {**grouping.home}
            for number, part in ((index, first), *enumerate(others, len(grouping.groups))):
                home.update({place: number for place in part if grouping.home[place] == index})
            smaller = Grouping(tuple(groups), home)
            try:
                dataflow.order(smaller)
            except CircleError:
                stuck.add(index)
                copied.update(live.nodes)
            else:
                grouping, is_changed = smaller, True
    return grouping, copied
