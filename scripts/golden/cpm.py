"""CPM-1, CPM-2 and CPM-Pretrain's T5 in plain PyTorch, for there are none in transformers: what their golden data are
made with.

Imported by make_cpm1.py, make_cpm2.py, make_cpm_t5.py and scripts/claims/parity.py. The first two compute what
ModelCenter 1.0.3 computes, under its names of parameters and of fields, with two exceptions: there, the last row of the
position-bias table receives no gradient, and padding queries attend to nothing. Here that row is trained, and padding
queries attend like tokens; outputs at padding are never compared. The third has ModelCenter's names of parameters, and
fields named as CPM-Pretrain's arguments.

The models take the arguments of transformers' and answer as they do, as far as decoders.py and seq2seq.py ask.
"""

import json
import math
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

BETWEEN = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}

# The field for a head tied to the token embedding, where it is not ModelCenter's.
TIED = {"cpm_t5": "tie_word_embeddings"}


def has(config, option):
    """Whether a configuration has an option that not all families have."""
    return getattr(config, option, False)


def configuration(model_type, *, tie_word_embeddings=False, num_labels=None, attn_implementation=None, **fields):
    """A configuration from a family's fields and those arguments of transformers' that the scripts give."""
    written = {"model_type": model_type, TIED.get(model_type, "tied"): tie_word_embeddings, "cls_head": num_labels,
               **fields}
    return SimpleNamespace(written=written, tied=tie_word_embeddings, cls_head=num_labels, **fields)


class Linear(nn.Linear):
    """A linear layer, without bias unless the family has one; optionally divides its output by the square root of the
    input size."""

    def __init__(self, config, inputs, outputs):
        super().__init__(inputs, outputs, bias=has(config, "hidden_bias"))
        self.divisor = math.sqrt(inputs) if config.length_scale else 1.0

    def forward(self, x):
        return super().forward(x) / self.divisor


class Norm(nn.Module):
    """Divides rows by the root of their mean square."""

    def __init__(self, config):
        super().__init__()
        self.epsilon = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.dim_model))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


def norm(config):
    return nn.LayerNorm(config.dim_model, config.norm_eps) if has(config, "layer_norm") else Norm(config)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = (config.num_heads, config.dim_head)
        self.divisor = math.sqrt(config.dim_head) if config.attn_scale else 1.0
        width = config.num_heads * config.dim_head
        self.project_q = Linear(config, config.dim_model, width)
        self.project_k = Linear(config, config.dim_model, width)
        self.project_v = Linear(config, config.dim_model, width)
        self.attention_out = Linear(config, width, config.dim_model)

    def forward(self, x, memory, seen, bias=0.0):
        """`seen` [B, L, S] is the attention mask; a query without any visible key gets zeros."""
        q, k, v = (projected.unflatten(-1, self.heads).transpose(1, 2)  # [B, N, L, H], [B, N, S, H] twice
                   for projected in (self.project_q(x), self.project_k(memory), self.project_v(memory)))
        scores = q @ k.transpose(2, 3) / self.divisor + bias  # [B, N, L, S]
        unseen = ~seen[:, None]
        # The smallest number in place of minus infinity: where all is unseen that has gradients, of zero.
        shares = scores.masked_fill(unseen, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(unseen, 0.0)
        return self.attention_out((shares @ v).transpose(1, 2).flatten(2))  # [B, L, D]


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.between = BETWEEN[config.ffn_activate_fn.removeprefix("gated_")]
        maps = ["w_0", "w_1"] if config.ffn_activate_fn.startswith("gated_") else ["w"]
        self.w_in = nn.ModuleDict({name: Linear(config, config.dim_model, config.dim_ff) for name in maps})
        self.w_out = Linear(config, config.dim_ff, config.dim_model)

    def forward(self, x):
        first, *gated = (into(x) for into in self.w_in.values())  # [B, L, F] each
        hidden = self.between(first)
        return self.w_out(hidden * gated[0] if gated else hidden)


def layer_behind_norm(config, name, layer):
    return nn.ModuleDict({f"layernorm_before_{name.rpartition('_')[2]}": norm(config), name: layer})


class Block(nn.Module):
    def __init__(self, config, is_behind_encoder):
        super().__init__()
        self.self_att = layer_behind_norm(config, "self_attention", Attention(config))
        self.cross_att = layer_behind_norm(config, "self_attention", Attention(config)) if is_behind_encoder else None
        self.shares_norm = is_behind_encoder and has(config, "shares_norm")
        feed_forward = FeedForward(config)
        self.ffn = nn.ModuleDict({"ffn": feed_forward}) if self.shares_norm else \
            layer_behind_norm(config, "ffn", feed_forward)

    def forward(self, x, seen, bias, memory):
        normed = self.self_att["layernorm_before_attention"](x)  # [B, L, D]
        x = x + self.self_att["self_attention"](normed, normed, seen, bias)
        if self.cross_att is not None:
            normed = self.cross_att["layernorm_before_attention"](x)
            x = x + self.cross_att["self_attention"](normed, *memory)
        before = self.cross_att["layernorm_before_attention"] if self.shares_norm else self.ffn["layernorm_before_ffn"]
        return x + self.ffn["ffn"](before(x))


class Stack(nn.Module):
    def __init__(self, config, layers, is_behind_encoder=False):
        super().__init__()
        self.layers = nn.ModuleList(Block(config, is_behind_encoder) for _ in range(layers))
        ends_bare = not is_behind_encoder and has(config, "shares_norm")
        self.output_layernorm = nn.Identity() if ends_bare else norm(config)

    def forward(self, x, seen, bias, memory=None):
        """The hidden states before the first block and after each one, the last after the final norm."""
        states = [x]
        for block in self.layers:
            states.append(block(states[-1], seen, bias, memory))
        return tuple(states[:-1]) + (self.output_layernorm(states[-1]),)


def ranges(length, count, largest, both_ways):
    """The number of each distance's range, [L, S]: half of a direction's are single distances, the others grow by equal
    ratios."""
    back = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    first = torch.zeros_like(back)
    if both_ways:
        count //= 2
        first[back < 0] = count
        back = back.abs()
    back = back.clamp(min=0)
    single = count // 2
    ratio = torch.log(back.clamp(min=1).float() / single) / math.log(largest / single)
    wide = single + (ratio * (count - single)).long()
    return first + torch.where(back < single, back, wide.clamp(max=count - 1))


class Distances(nn.Module):
    """One table of biases for all blocks of a stack."""

    def __init__(self, config, both_ways):
        super().__init__()
        self.sizes = (config.position_bias_num_buckets, config.position_bias_max_distance, both_ways)
        self.relative_attention_bias = nn.Parameter(torch.empty(config.position_bias_num_buckets, config.num_heads))

    def forward(self, length):
        return self.relative_attention_bias[ranges(length, *self.sizes)].permute(2, 0, 1)  # [N, L, S]


class Plain(nn.Module):
    """What the scripts ask of a model of transformers."""

    all_tied_weights_keys = {}
    _keys_to_ignore_on_save = None

    def save_pretrained(self, directory):
        written = {"architectures": [self.architecture()], **self.config.written}
        if self.config.cls_head:
            names = [f"LABEL_{index}" for index in range(self.config.cls_head)]
            written["id2label"] = {str(index): name for index, name in enumerate(names)}
            written["label2id"] = {name: index for index, name in enumerate(names)}
        text = json.dumps({name: value for name, value in written.items() if value is not None}, indent=2,
                          sort_keys=True)
        (directory / "config.json").write_text(text + "\n")
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()},
                  directory / "model.safetensors")


def before(length):
    """[L, L], the causal mask: whether a key's position is at or before the query's."""
    return torch.ones(length, length).tril().bool()


class Cpm1(Plain):
    def __init__(self, config):
        super().__init__()
        self.config = config
        config.is_encoder_decoder, config.num_hidden_layers = False, config.num_layers
        self.input_embedding = nn.Embedding(config.vocab_size, config.dim_model)
        self.position_bias = Distances(config, True)
        self.encoder = Stack(config, config.num_layers)
        if config.cls_head:
            self.cls_projection = Linear(config, config.dim_model, config.cls_head)
        elif not config.tied:
            self.output_projection = Linear(config, config.dim_model, config.vocab_size)

    def architecture(self):
        return "CPM1ForSequenceClassification" if self.config.cls_head else "CPM1ForCausalLM"

    def scaled(self, x):
        return x / math.sqrt(self.config.dim_model) if self.config.length_scale else x

    def forward(self, input_ids, attention_mask, context=None, span=None, labels=None, output_hidden_states=False):
        context = torch.zeros_like(input_ids).bool() if context is None else context.bool()  # [B, L]
        seen = context[:, None, :] | (~context[:, :, None] & before(input_ids.shape[1]))  # [B, L, L]
        if span is not None:
            seen = seen & (span[:, None, :] == span[:, :, None])
        seen = seen & attention_mask.bool()[:, None, :]
        words = self.scaled(self.input_embedding(input_ids))  # [B, L, D]
        states = self.encoder(words, seen, self.position_bias(input_ids.shape[1]))
        if self.config.cls_head:
            logits, loss = self.classify(states[-1], attention_mask, labels)
        else:
            logits = functional.linear(self.scaled(states[-1]), self.input_embedding.weight) if self.config.tied \
                else self.output_projection(states[-1])  # [B, L, V]
            loss = labels if labels is None else functional.cross_entropy(logits[:, :-1].flatten(0, 1),
                                                                          labels[:, 1:].flatten())
        return SimpleNamespace(hidden_states=states, logits=logits, loss=loss)

    def classify(self, hidden, mask, labels):
        """Classes of each row from its last token."""
        last = (mask * torch.arange(mask.shape[1])).argmax(1)  # [B]
        logits = self.cls_projection(hidden[torch.arange(len(last)), last])  # [B, classes]
        if labels is None:
            return logits, None
        if labels.is_floating_point():
            return logits, functional.mse_loss(logits[:, 0], labels)
        return logits, functional.cross_entropy(logits, labels)


class EncoderDecoder(Plain):
    """What models with an encoder and a decoder share. `sizes` has the options of blocks under ModelCenter's names."""

    def __init__(self, config, sizes, layers):
        super().__init__()
        self.config = config
        config.is_encoder_decoder, config.num_hidden_layers = True, layers
        self.input_embedding = nn.Embedding(config.vocab_size, sizes.dim_model)
        self.encoder = Stack(sizes, layers)
        self.decoder = Stack(sizes, config.num_decoder_layers, is_behind_encoder=True)

    def moved(self, labels):
        """The default decoder input: the labels shifted right after the start token, with padding for ignored
        labels."""
        first = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)], dim=1)

    def forward(self, input_ids, attention_mask, decoder_input_ids=None, decoder_attention_mask=None, labels=None,
                output_hidden_states=False, use_cache=False):
        read = self.moved(labels) if decoder_input_ids is None else decoder_input_ids  # [B, L]
        is_read = torch.ones_like(read) if decoder_attention_mask is None else decoder_attention_mask
        (_, source), (rows, target) = input_ids.shape, read.shape
        given = attention_mask.bool()[:, None, :]  # [B, 1, S]
        of_encoder, of_decoder = self.biases(source, target)
        encoded = self.encoder(self.embedded(input_ids), given.expand(rows, source, source), of_encoder)
        decoded = self.decoder(self.embedded(read), before(target) & is_read.bool()[:, None, :], of_decoder,
                               (encoded[-1], given.expand(rows, target, source)))
        logits = self.head(decoded[-1])  # [B, L, V]
        loss = labels if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(encoder_hidden_states=encoded, decoder_hidden_states=decoded,
                               encoder_last_hidden_state=encoded[-1], logits=logits, loss=loss)


class Cpm2(EncoderDecoder):
    def __init__(self, config):
        super().__init__(config, config, config.num_encoder_layers)
        self.position_bias_enc, self.position_bias_dec = Distances(config, True), Distances(config, False)
        self.output_projection = Linear(config, config.dim_model, config.vocab_size)

    def architecture(self):
        return "CPM2ForConditionalGeneration"

    def embedded(self, ids):
        return self.input_embedding(ids)

    def biases(self, source, target):
        return self.position_bias_enc(source), self.position_bias_dec(target)

    def head(self, hidden):
        return self.output_projection(hidden)


class CpmT5(EncoderDecoder):
    """Learned positions from one table for both stacks, and a tied head. `cpm_pretrain_norms`: no norm after the
    encoder, and one before cross-attention and feed-forward alike."""

    def __init__(self, config):
        sizes = SimpleNamespace(
            dim_model=config.hidden_size, num_heads=config.num_attention_heads, dim_head=config.kv_hidden_size,
            dim_ff=config.ff_hidden_size, ffn_activate_fn=config.hidden_act, norm_eps=config.layernorm_epsilon,
            length_scale=False, attn_scale=True, layer_norm=True, hidden_bias=config.hidden_bias,
            shares_norm=config.cpm_pretrain_norms)
        super().__init__(config, sizes, config.num_layers)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def architecture(self):
        return "CpmT5ForConditionalGeneration"

    def embedded(self, ids):
        return self.input_embedding(ids) + self.position_embedding.weight[: ids.shape[1]]  # [B, L, D]

    def biases(self, source, target):
        return 0.0, 0.0

    def head(self, hidden):
        return functional.linear(hidden, self.input_embedding.weight)


KINDS = {"cpm1": Cpm1, "cpm2": Cpm2, "cpm_t5": CpmT5}


def from_directory(directory):
    """The model of a directory, and the names that only one of the two has."""
    fields = json.loads((directory / "config.json").read_text())
    tied, classes = fields.pop(TIED.get(fields["model_type"], "tied")), fields.pop("cls_head", None)
    model = KINDS[fields["model_type"]](configuration(tie_word_embeddings=tied, num_labels=classes, **fields))
    report = model.load_state_dict(load_file(directory / "model.safetensors"), strict=False)
    return model, {"missing_keys": report.missing_keys, "unexpected_keys": report.unexpected_keys}
