"""Run as a program: compile every kernel for an H200, without one, and print what came out.

Every checked size in bfloat16, every other one in float32 too.

The interpreter takes programs that the compiler refuses; here the compiler has its say. One JSON object a launch.
"""

import importlib
import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dflash_lab.core.kernels.opspec import describe, load_spec

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}

TOUCHES = ("ld.global", "st.global", "cp.async", "atom.global", "atom.acq_rel")
"""Instructions that read or write the device's memory."""


def compile_launch(kernel, grid, *args, **meta):
    """Stands in for `launch`: compiles what would have been launched."""
    if "OVERLAP" in kernel.arg_names:
        meta["OVERLAP"] = True
    options = {name: meta.pop(name) for name in ("num_warps", "num_stages") if name in meta}
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = args[place] if place < len(args) else meta[parameter.name]
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[parameter.name], constants[(place,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found = {"kernel": kernel.fn.__name__, "grid": grid, "shared": compiled.metadata.shared}
    # With an overlapping launch, no memory that changes may be touched before the wait.
    waits, *touches = (compiled.asm["ptx"].find(word) for word in ("griddepcontrol.wait", *TOUCHES))
    waits_first = waits > 0 and all(place < 0 or place > waits for place in touches)
    print(json.dumps(found | {"bytes": len(compiled.asm["cubin"]), "waits_first": waits_first}))


def main(names):
    for name in names:
        module = importlib.import_module(f"dflash_lab.core.kernels.{name}.kernel")
        module.launch = compile_launch
        spec = load_spec(name)
        for place, case in enumerate(spec.cases):
            for dtype in (torch.bfloat16, torch.float32)[: 1 + place % 2]:
                print(name, describe(case), dtype, file=sys.stderr)
                arguments = spec.arguments(case, torch.device("cpu"), dtype, torch.Generator())
                getattr(module, name)(**arguments)


main(sys.argv[1:])
