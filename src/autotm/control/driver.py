"""A program -> kernels, and one function, the driver, that calls them under loops, branches and an explicit stack.

Kernels write states of loops, results of branches and arguments of calls straight to their places, or in place of what
they replace, where nobody reads that later. The driver itself reads conditions and counters, and copies what is saved
on the stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import tirx

from autotm.control.program import (
    Block,
    Branch,
    Check,
    Loop,
    Operator,
    Program,
    Recursion,
    SelfCall,
    Statement,
    Value,
    all_defined,
    defined,
    free,
    inner_blocks,
    read,
)
from autotm.control.regions import Area, Kernels, Part, Regions, Targets, aligned
from autotm.kernels import tir
from autotm.kernels.passes import GENERATED
from autotm.model.graph import ALIGNMENT_BYTES

DRIVER = "driver"
"""Symbol of the driver."""
_DATA = 1
"""TVM's number for the field of a `DLTensor` that points to the data."""


@dataclass(frozen=True)
class Lowered:
    """A program as functions that are ready to be compiled.

    Attributes:
        kernels: that the driver calls.
        driver: calls them. Its code must not be optimised together with theirs: LLVM is told of each function that no
            two of its buffers share memory, and would move their reads and writes across one another.
        slots: what each descriptor points to.
        workspace_bytes: without scratch.
        scratch_bytes: behind these.
        places: offsets of the arguments that are copied to the workspace, of constants, and of results.
        results: values that the program returns.
        errors: messages; the driver returns 0, or 1 more than the index of one.
        parts: in the order of the program, the whole first.
    """

    kernels: Kernels
    driver: tirx.PrimFunc
    slots: list[tuple[Area, int]]
    workspace_bytes: int
    scratch_bytes: int
    places: dict[Value, int]
    results: tuple[Value, ...]
    errors: list[str]
    parts: list[Part]


def lower(program: Program, kernels: Kernels) -> Lowered:
    """Lower a program to calls of kernels of a processor.

    Raises:
        AutotmError: an operator has no kernel.
    """
    return _Driver(program, kernels).lowered()


@dataclass(frozen=True)
class _Slice:
    """`made.results = where(places == number, part, made.operands[2])`, whose places count along an axis."""

    made: Operator
    part: Value
    number: Value
    axis: int


def _with_one(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return *shape[:axis], 1, *shape[axis + 1 :]


class _Driver(Regions):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.errors: list[str] = []
        self.locals: list[tirx.Buffer] = []
        self.bytes = tirx.decl_buffer((tir.number(1),), "int8", "bytes", layout=None)
        self.words = tirx.decl_buffer((tir.number(1),), "int32", "words", layout=None)

    def lowered(self) -> Lowered:
        results = tuple(value.fresh() for value in self.program.body.results)
        for value in self.program.constants:
            self.place(value)
        body = self.sequence(self.program.body.statements, list(zip(self.program.body.results, results, strict=True)))
        whole = [*self._views(), *map(tirx.AllocBuffer, self.locals), body, tirx.Return(tirx.IntImm("int32", 0))]
        driver = tirx.PrimFunc([self.descriptors], tir.sequence(whole), tvm.ir.PrimType("int32"))
        return Lowered(
            self.kernels,
            driver.with_attr(GENERATED, True),
            list(self.slots),
            self.workspace_bytes,
            self.scratch_bytes,
            self.places,
            results,
            self.errors,
            self.parts,
        )

    # The workspace.

    def _views(self) -> list[tirx.Stmt]:
        """Return the code that declares the workspace as bytes and as words.

        It is no argument: LLVM would take it that nobody else writes to an argument, as the kernels do here.
        """
        data = tirx.tvm_struct_get(self.descriptors, 0, _DATA, "handle")
        return [tirx.DeclBuffer(view, data=tirx.reinterpret(view.data.ty, data)) for view in (self.bytes, self.words)]

    def address(self, offset: tir.Index) -> tirx.Expr:
        """Return a pointer into the workspace."""
        return tirx.handle_add_byte_offset(self.bytes.data, tir.number(offset))

    def holds(self, condition: Value) -> tirx.Expr:
        """Return whether a bool is true."""
        return tirx.BufferLoad(self.bytes, [tir.number(self.place(condition))]) != tirx.IntImm("int8", 0)

    def word(self, value: Value, element: int = 0) -> tuple[tirx.Buffer, list[tirx.Expr]]:
        """Return where an element of whole numbers lies, of larger ones its lower half."""
        return self.words, [tir.number((self.place(value) + element * value.size_bytes // value.elements) // 4)]

    def local(self, name: str, dtype: str = "int32") -> tirx.Buffer:
        """Return a new variable of the driver."""
        self.locals.append(tirx.decl_buffer((tir.number(1),), dtype, name, layout=None))
        return self.locals[-1]

    # Statements.

    def sequence(self, statements: Iterable[Statement], targets: Targets) -> tirx.Stmt:
        """Return the code of statements, after which each target has been written."""
        code: list[tirx.Stmt] = []
        operators: list[Operator] = []
        statements, targets, before, after = self._rows_in_place(list(statements), list(targets))
        statements, targets, slices = self._slices_in_place(statements, targets)
        code += before
        made: set[Value] = set()
        for index, statement in enumerate(statements):
            if id(statement) in slices:
                code += [self.region(operators, []), slices[id(statement)]]
                operators = []
                continue
            if isinstance(statement, Operator):
                operators.append(statement)
                continue
            entry = entry_targets(statement)
            if isinstance(statement, Loop):
                rest = Block(tuple(statements[index + 1 :]), tuple(source for source, _ in targets))
                entry = self._taken_over(statement, made - free(rest), entry)
            code += [self.region(operators, entry), self.control(statement)]
            operators = []
            made.update(defined(statement))
        return tir.sequence([*code, self.region(operators, targets), *after])

    def _taken_over(self, loop: Loop, ending: set[Value], entry: Targets) -> Targets:
        """Let states of a loop lie where first values do that nobody reads later; return what is to be copied."""
        read_within = read(replace(loop, initial=()))
        given = Counter(loop.initial)
        copied = []
        for value, state in entry:
            if value in ending and value not in read_within and given[value] == 1:
                self.places[state] = self.place(value)
            else:
                copied.append((value, state))
        return copied

    def _rows_in_place(
        self, statements: list[Statement], targets: list[tuple[Value, Value]]
    ) -> tuple[list[Statement], list[tuple[Value, Value]], list[tirx.Stmt], list[tirx.Stmt]]:
        """Take out the updates of a few rows of a state whose result is the state's next value.

            loop ys: ys = scatter_nd(ys, [[i]], [y])   -->   loop ys: memcpy(ys + i, y)

        Returns the other statements and targets, and what is to be done before and after these.
        """
        makers = {value: item for item in statements if isinstance(item, Operator) for value in item.results}
        updates = {target: self._updates(source, target, makers) for source, target in targets}
        gone = [update for several in updates.values() for update in several]
        statements = [item for item in statements if item not in gone]
        targets = [(source, target) for source, target in targets if not updates[target]]
        written, changing = dict(targets), updates.keys()
        before: list[tirx.Stmt] = []
        after: list[tirx.Stmt] = []
        for target, update in ((target, update) for target, several in updates.items() for update in several):
            index, row = update.operands[1:]
            if (whole := self._same_numbers(index, makers)) and (whole in makers or self._is_in_workspace(whole)):
                statements.remove(makers[index])
                index = whole
            whole = self._same_numbers(row, makers)
            # A state will have its next value by then.
            if whole in makers or (whole not in changing and whole is not None and self._is_in_workspace(whole)):
                statements.remove(makers[row])
                row = whole
            if row in written:  # It is read from there.
                self.reads[row] -= 1
            for place in range(index.elements):
                number = tirx.BufferLoad(*self.word(index, place))
                if index not in makers:  # It is a state that may have another value afterwards.
                    variable = self.local("row")
                    before.append(put(variable, number))
                    number = get(variable)
                after.append(self._row_copied(number, written.get(row, row), place, target))
        return statements, targets, before, after

    def _updates(self, source: Value, target: Value, makers: Mapping[Value, Operator]) -> list[Operator]:
        """Return the updates of rows that make a state's next value from the state, none if anything else does."""
        found: list[Operator] = []
        while source is not target:
            made = makers.get(source)
            if made is None or made.name != "relax.scatter_nd" or self.reads[source] > 1:
                return []
            data, indices, rows = made.operands
            count = indices.shape[0]
            are_rows = count <= _MOST_ROWS and (indices.shape, rows.shape) == ((count, 1), (count, *data.shape[1:]))
            if not are_rows or made.call.attrs.reduction != "update" or not {indices, rows} <= makers.keys():
                return []
            found.append(made)
            source = data
        return found[::-1]

    def _same_numbers(self, value: Value, makers: Mapping[Value, Operator]) -> Value | None:
        """Return the value of another shape that a value is made of, if nothing else is made of it here."""
        made = makers[value]
        return made.operands[0] if self.reads[value] == 1 and made.name in _SAME_NUMBERS else None

    def _is_in_workspace(self, value: Value) -> bool:
        return self.operand(value)[0] is Area.WORKSPACE

    def _row_copied(self, number: tirx.Expr, given: Value, place: int, whole: Value) -> tirx.Stmt:
        """Return the code that copies a row of those given into a tensor, if the tensor has a row of that number."""
        size_bytes, rows = whole.size_bytes // max(whole.shape[0], 1), whole.shape[0]
        offset = tirx.Cast("int64", number) * size_bytes + self.place(whole)
        copy = copied_bytes(self.address(offset), self.address(self.place(given) + place * size_bytes), size_bytes)
        return tirx.IfThenElse(tirx.all(number >= 0, number < rows), copy, None)

    def _slices_in_place(
        self, statements: list[Statement], targets: list[tuple[Value, Value]]
    ) -> tuple[list[Statement], list[tuple[Value, Value]], dict[int, tirx.Stmt]]:
        """Write a slice of a state where it lies, as soon as nobody needs the old one.

            loop ys: ys = where(places == i, y, ys); f(ys)   -->   loop ys: memcpy(ys + i, y); f(ys)

        Returns the other targets, and what is to be done in place of some of the statements, by their identity; those
        that only told the places are left out.
        """
        makers = {value: item for item in statements if isinstance(item, Operator) for value in item.results}
        readers: dict[Value, list[int]] = {}
        for index, item in enumerate(statements):
            for value in read(item):
                readers.setdefault(value, []).append(index)
        sources = Counter(source for source, _ in targets)
        code: dict[int, tirx.Stmt] = {}
        for source, target in targets if self.kernels.may_copy_pieces else ():
            slices = self._slices(source, target, makers)
            places = [statements.index(one.made) for one in slices]
            is_last = all(
                max(readers[one.made.operands[2]]) == place and not sources[one.made.operands[2]]
                for one, place in zip(slices, places, strict=True)
            )
            if not is_last or sources[source] > 1:
                continue
            for one in slices:
                self.places[one.made.results[0]] = self.place(target)
                code[id(one.made)] = self._slice_copied(one, target)
        kept = [(source, target) for source, target in targets if id(makers.get(source)) not in code]
        unread = [
            item
            for item in statements
            if isinstance(item, Operator)
            and item.name == "relax.equal"
            and not sources[item.results[0]]
            and all(id(statements[index]) in code for index in readers.get(item.results[0], ()))
        ]
        return [item for item in statements if item not in unread], kept, code

    def _slices(self, source: Value, target: Value, makers: Mapping[Value, Operator]) -> list[_Slice]:
        """Return the slices that make a state's next value from the state, in order; none if anything else does."""
        found: list[_Slice] = []
        while source is not target:
            made = makers.get(source)
            if made is None or made.name != "relax.where" or made.operands[2].shape != source.shape:
                return []
            mask, part, source = made.operands
            test = makers.get(mask)
            if test is None or test.name != "relax.equal":
                return []
            for places, number in (test.operands, test.operands[::-1]):
                axis = self._axis(places, target)
                if axis is not None and number.elements == 1 and part.shape == _with_one(target.shape, axis):
                    break
            else:
                return []
            row_bytes = target.size_bytes // int(np.prod(target.shape[: axis + 1]))
            if row_bytes < ALIGNMENT_BYTES or not self._is_in_workspace(part) or not self._is_in_workspace(number):
                return []
            found.append(_Slice(made, part, number, axis))
        return found[::-1]

    def _axis(self, places: Value, whole: Value) -> int | None:
        """Return the axis of a tensor along which a constant counts from 0; None if it is no such constant."""
        array = self.program.constants.get(places)
        if array is None or array.size < 2 or array.ndim > len(whole.shape):  # noqa: PLR2004 - one place has no axis
            return None
        axes = [axis for axis, extent in enumerate(array.shape, len(whole.shape) - array.ndim) if extent > 1]
        is_count = len(axes) == 1 and np.array_equal(array.ravel(), np.arange(whole.shape[axes[0]]))
        return axes[0] if is_count else None

    def _slice_copied(self, one: _Slice, whole: Value) -> tirx.Stmt:
        """Return the code that copies a slice into a tensor, if the tensor has one of that number."""
        extent, outer = whole.shape[one.axis], int(np.prod(whole.shape[: one.axis]))
        row_bytes = whole.size_bytes // (outer * extent)
        number = tirx.BufferLoad(*self.word(one.number))
        first = tirx.Cast("int64", number) * row_bytes + self.place(whole)

        def row(index: tirx.Expr) -> tirx.Stmt:
            source = self.address(index * row_bytes + self.place(one.part))
            return copied_bytes(self.address(index * (extent * row_bytes) + first), source, row_bytes)

        return tirx.IfThenElse(tirx.all(number >= 0, number < extent), tir.loop(outer, row, "row"), None)

    def control(self, statement: Statement) -> tirx.Stmt:
        """Return the code of a statement that is no operator; states and parameters in it have their first values."""
        match statement:
            case Branch():
                sides = []
                for side in (statement.then, statement.otherwise):
                    with self._part("branch"):
                        targets = list(zip(side.results, statement.results, strict=True))
                        sides.append(self.sequence(side.statements, targets))
                return tirx.IfThenElse(self.holds(statement.condition), *sides)
            case Loop():
                with self._part("loop", statement.name, statement.steps if statement.condition is None else None):
                    return self._loop(statement)
            case Recursion():
                with self._part("recursion", statement.name):
                    return _StackMachine(self, statement).code()
            case Check():
                return tirx.IfThenElse(
                    tirx.BufferLoad(*self.word(statement.flag)) != 0, self.fail(statement.message), None
                )
        raise TypeError(statement)

    @contextmanager
    def _part(self, kind: str, name: str = "", times: int | None = None) -> Iterator[None]:
        """Count the kernels that are called within as those of a new part."""
        part = Part(kind, name, times, len(self.around))
        self.parts.append(part)
        self.around.append(part)
        yield
        self.around.pop()

    def fail(self, message: str) -> tirx.Stmt:
        """Return the code that ends the program with an error."""
        self.errors.append(message)
        return tirx.Return(tirx.IntImm("int32", len(self.errors)))

    def _loop(self, loop: Loop) -> tirx.Stmt:
        def body() -> tirx.Stmt:
            return self.sequence(loop.body.statements, list(zip(loop.body.results, loop.states, strict=True)))

        if loop.condition is None:
            return tir.loop(loop.steps, lambda _: body(), "step")
        head = self.sequence(loop.head, [])
        runs, done = self.local("runs"), self.local("steps")
        step = [body()]
        if loop.steps is not None:
            is_over = get(done) >= tirx.IntImm("int32", loop.steps)
            step = [tirx.IfThenElse(is_over, self.fail(too_many_steps(loop)), None), put(done, get(done) + 1), *step]
        leave = put(runs, 0)
        again = tir.sequence([head, tirx.IfThenElse(self.holds(loop.condition), tir.sequence(step), leave)])
        return tir.sequence([put(runs, 1), put(done, 0), tirx.While(get(runs) != 0, again)])


def entry_targets(statement: Statement) -> Targets:
    """Return what is written before a statement: first states of a loop, arguments of a recursion."""
    match statement:
        case Loop():
            return list(zip(statement.initial, statement.states, strict=True))
        case Recursion():
            return list(zip(statement.arguments, statement.parameters, strict=True))
    return []


def too_many_steps(loop: Loop) -> str:
    """Return the message for a while loop that passes its bound."""
    return (
        f"loop '{loop.name}' is not done after {loop.steps} steps, its bound; compile it with a larger one: "
        f"Limits(steps={{'{loop.name}': ...}})"
    )


_MOST_ROWS = 16
"""Rows of an update that are copied one by one; a kernel writes more."""
_SAME_NUMBERS = {"relax.reshape", "relax.expand_dims"}
"""Operators whose result has the numbers of their operand, in order."""


def get(variable: tirx.Buffer) -> tirx.Expr:
    """Return the value of a variable of the driver."""
    return tirx.BufferLoad(variable, [tir.number(0)])


def put(variable: tirx.Buffer, value: tirx.Expr | int) -> tirx.Stmt:
    """Return the code that sets a variable of the driver."""
    return tirx.BufferStore(
        variable, tirx.IntImm(variable.dtype, value) if isinstance(value, int) else value, [tir.number(0)]
    )


# Recursion: a function that calls itself becomes pieces of code between its calls, run by a loop over a stack.
#
# A call saves what is read after it on the stack, together with the number of the piece that goes on there. Since all
# values have fixed places, what is saved is copied, and kernels need not know of the stack.

_RETURN = 0
"""Number of the piece that ends a call."""


class _StackMachine:
    def __init__(self, driver: _Driver, recursion: Recursion) -> None:
        self.driver = driver
        self.recursion = recursion
        self.own = {*recursion.parameters, *all_defined(recursion.body)}
        self.next, self.level = driver.local("next"), driver.local("level")
        self.top = driver.local("top", "int64")
        self.pieces: list[list[tirx.Stmt]] = [[]]
        self.frame_bytes = 0

    def code(self) -> tirx.Stmt:
        """Return the loop over the stack; the parameters have their first values."""
        recursion = self.recursion
        targets = list(zip(recursion.body.results, recursion.results, strict=True))
        self.entry = len(self.pieces)
        self._convert(recursion.body.statements, targets, _RETURN, set())
        back = tirx.BufferLoad(self.driver.words, [(get(self.top) - ALIGNMENT_BYTES) // 4])
        returning = tir.sequence([put(self.level, get(self.level) - 1), put(self.next, back)])
        self.pieces[_RETURN] = [tirx.IfThenElse(get(self.level) == 0, put(self.next, -1), returning)]
        stack = self.driver.allocate(self.frame_bytes * (recursion.depth - 1))
        begin = [put(self.next, self.entry), put(self.level, 0), put(self.top, stack)]
        return tir.sequence([*begin, tirx.While(get(self.next) >= 0, self._dispatch(0, len(self.pieces)))])

    def _dispatch(self, first: int, last: int) -> tirx.Stmt:
        """Return the code that runs piece `next`, one of [first, last)."""
        if last - first == 1:
            return tir.sequence(self.pieces[first])
        middle = (first + last) // 2
        return tirx.IfThenElse(get(self.next) < middle, self._dispatch(first, middle), self._dispatch(middle, last))

    def _piece(self) -> int:
        self.pieces.append([])
        return len(self.pieces) - 1

    def _convert(self, statements: Sequence[Statement], targets: Targets, after: int, live: set[Value]) -> int:
        """Append pieces that run statements, write the targets, and go on with piece `after`.

        Returns the number of the first. `live` are values that may be read later than that.
        """
        driver, operators = self.driver, list[Operator]()
        start = current = self._piece()
        for index, statement in enumerate(statements):
            code, rest = self.pieces[current], statements[index + 1 :]
            if not _calls_itself(statement):
                if isinstance(statement, Operator):
                    operators.append(statement)
                    continue
                code += [driver.region(operators, entry_targets(statement)), driver.control(statement)]
                operators = []
                continue
            later = (free(Block(tuple(rest), tuple(source for source, _ in targets))) | live) & self.own
            is_last = not rest and [source for source, _ in targets] == [*defined(statement)]
            match statement:
                case SelfCall() if is_last and after == _RETURN:
                    code += [driver.region(operators, self._passed(statement)), put(self.next, self.entry)]
                    return start
                case SelfCall():
                    current = self._call(code, operators, statement, later - {*statement.results})
                case Branch():
                    code.append(driver.region(operators, []))
                    join = after if is_last else self._piece()
                    written = [target for _, target in targets] if is_last else statement.results
                    sides = [
                        self._convert(side.statements, list(zip(side.results, written, strict=True)), join, later)
                        for side in (statement.then, statement.otherwise)
                    ]
                    code.append(tirx.IfThenElse(driver.holds(statement.condition), *(put(self.next, s) for s in sides)))
                    if is_last:
                        return start
                    current = join
                case Loop():
                    code.append(driver.region(operators, entry_targets(statement)))
                    current = self._loop(code, statement, later)
            operators = []
        self.pieces[current] += [driver.region(operators, targets), put(self.next, after)]
        return start

    def _passed(self, call: SelfCall) -> Targets:
        return list(zip(call.arguments, self.recursion.parameters, strict=True))

    def _call(self, code: list[tirx.Stmt], operators: Sequence[Operator], call: SelfCall, later: set[Value]) -> int:
        """Append a call to a piece; return the number of the piece that goes on after it."""
        driver, recursion = self.driver, self.recursion
        resume = self._piece()
        made = {value for item in operators for value in item.results}
        # In the order of their places, so that the code is the same for the same program.
        saved = sorted(later, key=driver.place)
        offsets, frame = [], 0
        for value in saved:
            offsets.append(frame)
            frame += aligned(value.size_bytes)
        self.frame_bytes = max(self.frame_bytes, frame + ALIGNMENT_BYTES)

        def copies(values: set[Value], *, to_stack: bool) -> list[tirx.Stmt]:
            code = []
            for value, offset in zip(saved, offsets, strict=True):
                if value in values:
                    pair = driver.address(get(self.top) + offset), driver.address(driver.place(value))
                    code.append(copied_bytes(*(pair if to_stack else pair[::-1]), value.size_bytes))
            return code

        limit = f"'{recursion.name}' calls itself more than {recursion.depth} levels deep, its limit; "
        remedy = "compile it with a larger one: Limits(depth=...)"
        is_full = get(self.level) >= recursion.depth - 1
        code.append(tirx.IfThenElse(is_full, driver.fail(limit + remedy), None))
        # Before the arguments are written to the places of the parameters.
        code += copies(later - made, to_stack=True)
        code.append(driver.region(operators, self._passed(call)))
        code += copies(later & made, to_stack=True)
        code.append(tirx.BufferStore(driver.words, tirx.IntImm("int32", resume), [(get(self.top) + frame) // 4]))
        code += [put(self.top, get(self.top) + (frame + ALIGNMENT_BYTES)), put(self.level, get(self.level) + 1)]
        code.append(put(self.next, self.entry))
        back = self.pieces[resume]
        back.append(put(self.top, get(self.top) - (frame + ALIGNMENT_BYTES)))
        back += copies(later, to_stack=False)
        for returned, result in zip(recursion.results, call.results, strict=True):
            addresses = driver.address(driver.place(result)), driver.address(driver.place(returned))
            back.append(copied_bytes(*addresses, result.size_bytes))
        return resume

    def _loop(self, code: list[tirx.Stmt], loop: Loop, later: set[Value]) -> int:
        """Append a loop in which there are calls to a piece; return the number of the piece that goes on after it."""
        driver, counter = self.driver, Value("step", (), "int32")
        self.own.add(counter)
        count, test, leave = driver.word(counter), self._piece(), self._piece()
        code.append(tirx.BufferStore(count[0], tirx.IntImm("int32", 0), count[1]))
        # All that the next step may read is kept through a call in this one.
        inner = Block((*loop.head, *loop.body.statements), loop.body.results)
        later = (later | free(inner) | {*loop.states, counter}) & self.own
        head = self._convert(loop.head, [], test, later | free(loop.body))
        code.append(put(self.next, head))
        body_targets = list(zip(loop.body.results, loop.states, strict=True))
        body = self._convert(loop.body.statements, body_targets, head, later)
        done = tirx.BufferLoad(*count)
        enter = [tirx.BufferStore(count[0], done + 1, count[1]), put(self.next, body)]
        go_on = put(self.next, leave)
        if loop.condition is None:
            self.pieces[test].append(tirx.IfThenElse(done < loop.steps, tir.sequence(enter), go_on))
            return leave
        if loop.steps is not None:
            enter.insert(0, tirx.IfThenElse(done >= loop.steps, driver.fail(too_many_steps(loop)), None))
        self.pieces[test].append(tirx.IfThenElse(driver.holds(loop.condition), tir.sequence(enter), go_on))
        return leave


def copied_bytes(target: tirx.Expr, source: tirx.Expr, size_bytes: int) -> tirx.Stmt:
    """Return the code that copies bytes from one pointer to another."""
    return tirx.Evaluate(tirx.call_extern("handle", "memcpy", target, source, tir.number(size_bytes)))


def _calls_itself(statement: Statement) -> bool:
    """Whether there is a call of the recursion around in a statement, and not of one that is nested in it."""
    if isinstance(statement, Recursion):
        return False
    return isinstance(statement, SelfCall) or any(
        _calls_itself(inner) for block in inner_blocks(statement) for inner in block.statements
    )
