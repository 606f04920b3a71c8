"""What the software B200 takes over of torch, the CuTe DSL and cuda-python: the table.

`python -m b200 info` says what of it is missing on a machine. Names of a package that are public,
as `torch.cuda.Event`, do not stand here; takeover.py has the loop.
"""

from __future__ import annotations

from b200.host.takeover import Feature

_AUTOGRAD = "torch.autograd.function"
_COMPILER, _JIT = "cutlass.base_dsl.compiler", "cutlass.base_dsl.jit_executor"
_CUDA_JIT = "cutlass.cutlass_dsl.cuda_jit_executor:CudaDialectJitCompiledFunction"
_ENGINE = "cutlass._mlir.execution_engine:ExecutionEngine"
_RUNTIME, _HARDWARE = "cutlass.cute.runtime", "cutlass.utils.hardware_info:HardwareInfo"
_PREPARE = f"{_JIT}:ExecutionArgs.generate_execution_args"
_SIGNATURE = f"{_JIT}:ExecutionArgs.filter_runtime_signature"  # has `signature`, not args_spec

TORCH = (
    Feature(
        "torch on cuda",
        "torch.cuda_module:patch",
        (
            "torch._C:DisableTorchFunctionSubclass",
            "torch.utils._pytree:tree_map_only",
            "torch.utils._device:_device_constructors",
            "torch.utils._device:DeviceContext",
            "torch.utils._python_dispatch:TorchDispatchMode",
        ),
        ("torch.cuda:*", "torch.cuda:_lazy_init"),
    ),
    Feature(
        "autograd.Function on cuda",
        "torch.callbacks:patch_functions",
        (
            "torch._C:_FunctionBase.saved_tensors",
            "torch._C:_EnableTorchFunction",
            f"{_AUTOGRAD}:FunctionCtx.save_for_backward",
            f"{_AUTOGRAD}:BackwardCFunction",
        ),
        ("torch.autograd:Function.apply",),
        means="cuda",
    ),
    Feature(
        "hooks of tensors on cuda",
        "torch.callbacks:patch_hooks",
        ("torch._C:_EnableTorchFunction",),
        ("torch:Tensor.register_hook", "torch:Tensor.register_post_accumulate_grad_hook"),
        means="cuda",
    ),
    Feature(
        "torch.library kernels on cuda",
        "torch.callbacks:patch_library",
        (
            "torch._C:_EnableTorchFunction",
            "torch.library:fallthrough_kernel",
            "torch.utils._pytree:tree_leaves",
        ),
        ("torch.library:Library.impl",),
        means="cuda",
    ),
    Feature(
        "torch.profiler on cuda",
        "torch.cuda_module:patch_profiler",
        ("torch.autograd.profiler:profile",),
        ("torch.profiler:profile", "torch.autograd:profiler.profile"),
    ),
    Feature("torch.compile on cuda", "torch.compiled:patch"),
    Feature("NVFP4 in torch._scaled_mm", "torch.products:patch_scaled_mm", ("torch:_scaled_mm",)),
    Feature("products with out_dtype", "torch.products:patch_out_dtype"),
    Feature(
        "CUDA graphs of torch",
        "torch.graphs:patch_torch",
        ("torch.utils._python_dispatch:TorchDispatchMode", "torch.cuda.graphs:CUDAGraph"),
        ("torch.cuda:CUDAGraph", "torch.cuda:graph"),
    ),
    Feature("a pattern in unwritten tensors", "torch.unwritten_tensors:patch", real_gpu=True),
)

DSL = (
    Feature(
        "CuTe DSL",
        "dsl.engine:connect",
        (
            f"{_ENGINE}.raw_register_runtime",
            f"{_ENGINE}.lookup",
            f"{_CUDA_JIT}._load_cuda_library",
            f"{_JIT}:JitExecutor.run_compiled_program",
            "cutlass.cutlass_dsl.cutlass:CuTeDSL._get_dsl",
            "cutlass.base_dsl.common:DSLCudaRuntimeError",
            f"{_COMPILER}:CompileOptions.apply_envar_settings",
            f"{_COMPILER}:KeepPTX",
            "cutlass.base_dsl.dsl:BaseDSL.post_compilation_cleanup",
        ),
        ("cutlass.cute:compile", "cutlass.cute:jit", "cutlass.cute:kernel"),
        real_gpu=True,
    ),
    Feature(
        "the DSL's alignment of CPU tensors",
        "dsl.tensors:patch_checks",
        (f"{_RUNTIME}:_Tensor.__c_pointers__", f"{_RUNTIME}:_Pointer"),
        (f"{_RUNTIME}:from_dlpack", f"{_RUNTIME}:make_ptr"),
        real_gpu=True,
    ),
    Feature(
        "CPU tensors as global memory of the DSL",
        "dsl.tensors:patch",
        (
            f"{_RUNTIME}:_Tensor.mlir_type",
            "cutlass._mlir.dialects.cute:print_view",
            "cutlass._mlir.dialects.cute:print_",
        ),
        (f"{_RUNTIME}:from_dlpack",),
    ),
    Feature(
        "--enable-tvm-ffi",
        "dsl.tvm_ffi:patch",
        (
            f"{_COMPILER}:CompileOptions.enable_tvm_ffi",
            f"{_RUNTIME}:_Tensor",
            f"{_RUNTIME}:_FakeTensor",
            "cutlass.cutlass_dsl.cutlass:CutlassBaseDSL.compile_and_cache",
            _PREPARE,
            _SIGNATURE,
        ),
        (f"{_COMPILER}:CompileCallable.__call__",),
        means="tvm-ffi",
        real_gpu=True,
    ),
    Feature(
        "the DSL's arguments against those that were compiled for",
        "dsl.arguments:patch",
        (f"{_COMPILER}:CompileCallable.__call__", _PREPARE, _SIGNATURE),
        real_gpu=True,
        optional=True,
    ),
    Feature(
        "lines of calling functions in findings",
        "dsl.source_lines:keep_chains",
        ("cutlass.base_dsl._mlir_helpers.op:ir|cutlass._mlir_helpers.op:ir",),
        real_gpu=True,
        optional=True,
    ),
    Feature("fast tracing of the DSL", "dsl.tracing:hasten", real_gpu=True, optional=True),
    Feature(
        "HardwareInfo",
        "dsl.hardware:patch",
        (
            f"{_HARDWARE}.get_max_active_clusters",
            f"{_HARDWARE}.get_l2_cache_size_in_bytes",
            f"{_HARDWARE}.get_device_multiprocessor_count",
        ),
        (f"{_HARDWARE}.__init__",),
    ),
)

CUDA_PYTHON = (
    Feature(
        "cuda-python",
        "cuda_python.functions:patch",
        ("cuda.bindings.driver:CUlibrary", "cuda.bindings.runtime:cudaLibrary_t"),
        ("cuda.bindings.driver:*", "cuda.bindings.runtime:*"),
    ),
    Feature(
        "NVRTC",
        "cuda_python.nvrtc:patch",
        ("cuda.bindings.nvrtc:nvrtcGetPTX", "cuda.bindings.nvrtc:nvrtcCompileProgram"),
        ("cuda.bindings.nvrtc:*",),
    ),
)

FEATURES = TORCH + DSL + CUDA_PYTHON
