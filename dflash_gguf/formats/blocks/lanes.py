"""Thirty-two float32 numbers that a kernel handles as one: `F32x32`.

One lane is one block. All lanes do the same operation at the same time, so that every block's sums keep their
own order and the result does not depend on how wide the processor's registers are: LLVM cuts the 32 lanes into
what the machine has, and without fast-math flags it may neither reorder nor contract anything.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.core.datamodel import models, register_default
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: Lanes of one `F32x32`. 32 measured fastest of 8, 16, 32 on AVX2, and is the length of a block of the simple types.
LANES = 32

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)


class F32x32(Protocol):
    """What type checkers see of 32 lanes; in compiled code it is one LLVM vector."""

    def __add__(self, other: F32x32, /) -> F32x32: ...
    def __sub__(self, other: F32x32, /) -> F32x32: ...
    def __mul__(self, other: F32x32, /) -> F32x32: ...
    def __truediv__(self, other: F32x32, /) -> F32x32: ...


class _LanesType(types.Type):  # type: ignore[misc]  # numba has no type information
    def __init__(self) -> None:
        super().__init__(name=f"F32x{LANES}")


_lanes = _LanesType()


@register_default(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _FLOATS)


def _splat(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [float(value)] * LANES)


def _spread_int(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES)


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Give numba a function that types a call and writes its instructions."""
    return intrinsic(function)


def _operation(n_args: int, emit: Callable[..., ir.Value]) -> Any:
    """Numba function of `n_args` (at most four) lanes; `emit(builder, *lanes)` writes its instructions."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return emit(builder, *args)

    if n_args == 1:
        return _intrinsic(lambda _context, _a: (_lanes(_lanes), generate))
    if n_args == 2:
        return _intrinsic(lambda _context, _a, _b: (_lanes(_lanes, _lanes), generate))
    return _intrinsic(lambda _context, _a, _b, _x, _y: (_lanes(_lanes, _lanes, _lanes, _lanes), generate))


def _operator(symbol: Callable[[Any, Any], Any], emit: Callable[..., ir.Value]) -> None:
    @infer_global(symbol)
    class _Typing(ConcreteTemplate):  # type: ignore[misc]
        cases: ClassVar = [signature(_lanes, _lanes, _lanes)]

    @lower_builtin(symbol, _LanesType, _LanesType)  # type: ignore[untyped-decorator]
    def _lower(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return emit(builder, *args)


_operator(operator.add, lambda builder, a, b: builder.fadd(a, b))
_operator(operator.sub, lambda builder, a, b: builder.fsub(a, b))
_operator(operator.mul, lambda builder, a, b: builder.fmul(a, b))
_operator(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))


def _select(predicate: str) -> Any:
    return _operation(4, lambda builder, a, b, x, y: builder.select(builder.fcmp_ordered(predicate, a, b), x, y))


#: `if_less(a, b, x, y)`: x in the lanes where a < b, else y; a NaN compares false, as in C. Likewise the next two.
if_less: Callable[[F32x32, F32x32, F32x32, F32x32], F32x32] = _select("<")
if_greater: Callable[[F32x32, F32x32, F32x32, F32x32], F32x32] = _select(">")
if_equal: Callable[[F32x32, F32x32, F32x32, F32x32], F32x32] = _select("==")


def _emit_intrinsic(name: str) -> Callable[..., ir.Value]:
    def emit(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        function_type = ir.FunctionType(_FLOATS, [_FLOATS])
        function = get_or_insert_function(builder.module, function_type, f"{name}.v{LANES}f32")
        return builder.call(function, [a])

    return emit


square_root: Callable[[F32x32], F32x32] = _operation(1, _emit_intrinsic("llvm.sqrt"))
magnitude: Callable[[F32x32], F32x32] = _operation(1, _emit_intrinsic("llvm.fabs"))


def _emit_nearest(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    shifted = builder.bitcast(builder.fadd(a, _splat(12582912.0)), _INTS)
    mantissa = builder.and_(shifted, _spread_int(0x7FFFFF))
    return builder.sitofp(builder.sub(mantissa, _spread_int(0x400000)), _FLOATS)


#: Round half to even by adding 1.5·2²³ and reading the mantissa. Beyond ±2²² the result is what those bits happen
#: to say (0 for NaN, −2²² for infinities): part of the format's definition, since files were written that way.
nearest: Callable[[F32x32], F32x32] = _operation(1, _emit_nearest)


def _emit_truncate(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    # Converting what an int32 cannot hold is undefined, and x86 code gives a value whose low byte is 0.
    size = _emit_intrinsic("llvm.fabs")(builder, a)
    fits = builder.fcmp_ordered("<", size, _splat(2.0**31))
    return builder.sitofp(builder.fptosi(builder.select(fits, a, _splat(0.0)), _INTS), _FLOATS)


#: Towards zero; 0 for NaN and for what an int32 cannot hold.
truncate: Callable[[F32x32], F32x32] = _operation(1, _emit_truncate)


def _spread(_context: Any, _value: Any) -> Any:
    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(undefined, args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, undefined, _spread_int(0))

    return _lanes(types.float32), generate


#: All lanes hold the float32 `value`.
spread: Callable[[np.float32], F32x32] = _intrinsic(_spread)


def _reduction(combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]) -> Any:
    """Combine the lower half of the lanes with the upper one until one is left: always in this order."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        (vector,) = args
        width = LANES
        while width > 1:
            width //= 2
            low = [
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(start, start + width)))
                for start in (0, width)
            ]
            undefined = ir.Constant(vector.type, ir.Undefined)
            left, right = (builder.shuffle_vector(vector, undefined, mask) for mask in low)
            vector = combine(builder, left, right)
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return _intrinsic(lambda typingctx, a: (types.float32(_lanes), generate))  # noqa: ARG005 - numba looks at names


#: Largest lane as float32 (no lane may be NaN).
largest: Callable[[F32x32], np.float32] = _reduction(
    lambda builder, left, right: builder.select(builder.fcmp_ordered(">", left, right), left, right)
)
#: Sum of the lanes.
total: Callable[[F32x32], np.float32] = _reduction(lambda builder, left, right: builder.fadd(left, right))


def _pointer(context: Any, builder: ir.IRBuilder, array_type: Any, array: Any, at: Any, to: Any) -> ir.Value:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), to.as_pointer())


def _load(_context: Any, array: Any, _at: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        array_value, index = args
        value = builder.load(_pointer(context, builder, signature.args[0], array_value, index, _FLOATS))
        value.align = 1
        return value

    return _lanes(array, types.intp), generate


#: Lanes from `array[at : at + LANES]` (float32, contiguous, any alignment; not bounds-checked).
load: Callable[[NDArray[np.float32], int], F32x32] = _intrinsic(_load)


def _store(_context: Any, array: Any, _at: Any, _value: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        array_value, index, lanes = args
        target = _pointer(context, builder, signature.args[0], array_value, index, _FLOATS)
        builder.store(lanes, target).align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


#: Lanes to `array[at : at + LANES]` (float32, contiguous; not bounds-checked).
store: Callable[[NDArray[np.float32], int, F32x32], None] = _intrinsic(_store)


def _store_bytes(_context: Any, array: Any, _at: Any, _value: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        array_value, index, lanes = args
        target = _pointer(context, builder, signature.args[0], array_value, index, _BYTES)
        builder.store(builder.trunc(builder.fptosi(lanes, _INTS), _BYTES), target).align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


#: Low byte of each lane's integer to `array[at : at + LANES]` (uint8; lanes hold integers that fit int32).
store_bytes: Callable[[NDArray[np.uint8], int, F32x32], None] = _intrinsic(_store_bytes)
