// Stands in for torch's header, which costs a compiler ten seconds in each of its passes: tensors,
// their methods and operators, and the few functions that the host code of a kernel makes tensors with. A program
// that wants more is compiled again with torch's own header (../../build.py).
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/ones_ops.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

namespace at {

#define B200_OPTIONS(o)                                                             \
  c10::optTypeMetaToScalarType(o.dtype_opt()), o.layout_opt(), o.device_opt(),      \
      o.pinned_memory_opt()

inline Tensor empty(IntArrayRef size, TensorOptions options = {},
                    std::optional<MemoryFormat> format = std::nullopt) {
  return _ops::empty_memory_format::call(
      c10::fromIntArrayRefSlow(size), B200_OPTIONS(options),
      c10::impl::check_tensor_options_and_extract_memory_format(options, format));
}
inline Tensor empty_strided(IntArrayRef size, IntArrayRef stride, TensorOptions options = {}) {
  return _ops::empty_strided::call(c10::fromIntArrayRefSlow(size),
                                   c10::fromIntArrayRefSlow(stride), B200_OPTIONS(options));
}
inline Tensor zeros(IntArrayRef size, TensorOptions options = {}) {
  return _ops::zeros::call(c10::fromIntArrayRefSlow(size), B200_OPTIONS(options));
}
inline Tensor ones(IntArrayRef size, TensorOptions options = {}) {
  return _ops::ones::call(c10::fromIntArrayRefSlow(size), B200_OPTIONS(options));
}
inline Tensor full(IntArrayRef size, const Scalar& value, TensorOptions options = {}) {
  return _ops::full::call(c10::fromIntArrayRefSlow(size), value, B200_OPTIONS(options));
}
inline Tensor empty_like(const Tensor& like, TensorOptions options = {},
                         std::optional<MemoryFormat> format = std::nullopt) {
  return _ops::empty_like::call(
      like, B200_OPTIONS(options),
      c10::impl::check_tensor_options_and_extract_memory_format(options, format));
}
inline Tensor zeros_like(const Tensor& like, TensorOptions options = {},
                         std::optional<MemoryFormat> format = std::nullopt) {
  return _ops::zeros_like::call(
      like, B200_OPTIONS(options),
      c10::impl::check_tensor_options_and_extract_memory_format(options, format));
}
inline Tensor ones_like(const Tensor& like, TensorOptions options = {},
                        std::optional<MemoryFormat> format = std::nullopt) {
  return _ops::ones_like::call(
      like, B200_OPTIONS(options),
      c10::impl::check_tensor_options_and_extract_memory_format(options, format));
}
inline Tensor cat(const ITensorListRef& tensors, int64_t dim = 0) {
  return _ops::cat::call(tensors, dim);
}

#undef B200_OPTIONS

// Functions that a tensor has as methods. With a list in braces they are torch's own header's.
#define B200_FUNCTION(name)                                                              \
  template <class... Rest>                                                               \
  auto name(const Tensor& x, Rest&&... rest)->decltype(x.name(std::forward<Rest>(rest)...)) { \
    return x.name(std::forward<Rest>(rest)...);                                          \
  }

B200_FUNCTION(abs)
B200_FUNCTION(add)
B200_FUNCTION(allclose)
B200_FUNCTION(amax)
B200_FUNCTION(amin)
B200_FUNCTION(any)
B200_FUNCTION(argmax)
B200_FUNCTION(argmin)
B200_FUNCTION(bmm)
B200_FUNCTION(clamp)
B200_FUNCTION(cumsum)
B200_FUNCTION(div)
B200_FUNCTION(equal)
B200_FUNCTION(exp)
B200_FUNCTION(index_select)
B200_FUNCTION(log)
B200_FUNCTION(matmul)
B200_FUNCTION(max)
B200_FUNCTION(mean)
B200_FUNCTION(min)
B200_FUNCTION(mm)
B200_FUNCTION(mul)
B200_FUNCTION(nonzero)
B200_FUNCTION(reshape)
B200_FUNCTION(rsqrt)
B200_FUNCTION(softmax)
B200_FUNCTION(sort)
B200_FUNCTION(sqrt)
B200_FUNCTION(squeeze)
B200_FUNCTION(sub)
B200_FUNCTION(sum)
B200_FUNCTION(topk)
B200_FUNCTION(transpose)
B200_FUNCTION(unsqueeze)
#undef B200_FUNCTION

// As in torch's ATen/TensorOperators.h: a tensor or a number on either side.
#define B200_OPERATOR(op, both, reversed)                                              \
  inline Tensor operator op(const Tensor& x, const Tensor& y) { return both; }         \
  inline Tensor operator op(const Tensor& x, const Scalar& y) { return both; }         \
  inline Tensor operator op(const Scalar& x, const Tensor& y) { return reversed; }

B200_OPERATOR(+, x.add(y), y.add(x))
B200_OPERATOR(*, x.mul(y), y.mul(x))
B200_OPERATOR(-, x.sub(y), empty_like(y).fill_(x).sub_(y))
B200_OPERATOR(/, x.div(y), empty_like(y).fill_(x).div_(y))
B200_OPERATOR(%, x.remainder(y), empty_like(y).fill_(x).remainder_(y))
B200_OPERATOR(&, x.bitwise_and(y), y.bitwise_and(x))
B200_OPERATOR(|, x.bitwise_or(y), y.bitwise_or(x))
B200_OPERATOR(^, x.bitwise_xor(y), y.bitwise_xor(x))
B200_OPERATOR(<, x.lt(y), y.gt(x))
B200_OPERATOR(<=, x.le(y), y.ge(x))
B200_OPERATOR(>, x.gt(y), y.lt(x))
B200_OPERATOR(>=, x.ge(y), y.le(x))
B200_OPERATOR(==, x.eq(y), y.eq(x))
B200_OPERATOR(!=, x.ne(y), y.ne(x))
#undef B200_OPERATOR

}  // namespace at
