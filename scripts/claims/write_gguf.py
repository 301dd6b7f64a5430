"""A GGUF file again with its weights in one dtype, for comparisons.

    python write_gguf.py IN.gguf OUT.gguf f32|bf16|q8_0

Metadata, names and the order of the rows stay as they are in IN; blocks are dequantised, and for q8_0 quantised again.
Vectors, such as the weights of norms, are F32 in all: llama.cpp has them so. Runs in the environment of
scripts/llama_env.sh.
"""

import sys
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, GGUFValueType, LlamaFileType
from gguf.quants import dequantize, quantize

TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
# Written by GGUFWriter itself, or no longer true.
OWN = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def copy_metadata(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith(OWN):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)


def convert(source, out, dtype):
    reader = GGUFReader(source)
    kind, file_type = TYPES[dtype]
    writer = GGUFWriter(out, reader.get_field("general.architecture").contents())
    copy_metadata(reader, writer)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        own = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) != 4 or sys.argv[3] not in TYPES:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    main()
