"""Golden data for what the expressions of chat templates mean: small templates, and what Jinja, as transformers sets it
up, makes of them.

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_chat_expressions.py            # writes chat/expressions.json
    "$python" scripts/golden/make_chat_expressions.py --check    # compares with the committed file

A case is the source and the text, or null where transformers refuses. The lists of names are of Jinja's registries and
of Python's types, for a test that each is known to the program.
"""

import json
import random
from pathlib import Path

import text_golden
from transformers.utils import chat_template_utils

PINNED = {"transformers": "5.23.0", "jinja2": "3.1.6"}
OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/chat/expressions.json"

CONTEXT = {
    "messages": [{"role": "user", "content": "Who <wrote> this & that?"},
                 {"role": "assistant",
                  "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}],
    "s": "Hello, World", "t": "  a b\t c \n", "e": "", "u": "Ünïcode 中文 é 😀", "q": "it's \"so\"", "html": "<b>&'\"</b>",
    "lines": "one\r\ntwo\nthree\x0bfour\n", "n": 7, "z": 0, "neg": -3, "f": 1.5, "small": 1e-05, "large": 1e22,
    "whole": 2.0, "big": 18446744073709551615, "yes": True, "no": False, "nothing": None, "numbers": [3, 1, 2, 1],
    "floats": [1e-05, 1e22, 0.1, 1e16, 123456789012345.0, -0.0, 1e-7, 5e-324],
    "letters": ["b", "a", "C", "a"], "d": {"b": 1, "a": [1, {"c": None}], "items": "own", "x y": True},
    "rows": [{"n": "x", "v": 2, "k": {"p": 1}}, {"n": "y", "v": 1, "k": {"p": 2}}, {"n": "X", "v": 2}],
    "deep": {"a": {"b": [10, 20, {"c": "end"}]}}, "mixed": [1, "a", None, True, 1.0, [2], {"k": "v"}],
    "pairs": [["a", 1], ["b", 2]], "schema": {"type": "object", "properties": {"items": {"type": "array"},
                                                                               "keys": {"type": "string"}}},
}

# Each is put between {{ and }}.
EXPRESSIONS = r"""
s
missing
[missing]
nothing
[nothing, true, false]
yes ~ no ~ nothing ~ missing ~ n ~ f
f
whole
small
large
floats
floats|tojson
floats|string
floats|join(' ')
'' ~ small ~ large
big
big + 1
-big
[big]|tojson
0.1 + 0.2
1e5
1.5e-7
1_000
0x1F + 0b11 + 0o17
1e400
-1e400
[1e400, -1e400]|tojson
7 / 2
8 / 2
7 // 2
-7 // 2
7 % -3
-7 % 3
7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 0.5
2 ** 3 ** 2
-2 ** 2
- n
+ n
-n|abs
1 - 1 - 1
2 * 3 + 4 * 5
true + true
true * 3
yes == 1
1 == 1.0
1 == '1'
n / 0
n % 0
n // 0
s + n
n + s
s + s
[1] + [2]
(1, 2) + (3,)
[1] + (2,)
s * 2
2 * s
[1, 2] * 2
(1,) * 3
s - s
s * 1.5
nothing + 1
missing + 1
missing ~ 'x'
'a' ~ 1 ~ 'b'
'a' ~ 1 + 2
'%s and %s' % ('a', 1)
'%s' % s
'%s' % [1, 2]
'%s' % (1,)
'%s' % nothing
'%r' % s
'%r' % q
'%d' % 3.7
'%d' % '3'
'%05d|%-5d|%+d' % (3, 4, 5)
'%x %X %o %#x' % (255, 255, 8, 255)
'%e %.2e %E' % (12345.678, 0.00012, 1.0)
'%f %.2f %.0f' % (1.5, 2.675, 0.5)
'%g %g %g %G' % (0.0001, 1234567.0, 1e-10, 1e-10)
'%.3g' % 1234.5
'%%' % ()
'%c' % 'x'
'%(a)s-%(b)d' % {'a': 'x', 'b': 2}
'%*d' % (5, 3)
'%.*f' % (2, 1.23456)
'%s %s' % ('a',)
'%s' % ('a', 'b')
'%5s|%-5s|%.2s' % ('a', 'b', 'cde')
'%s' % missing
'a' % 1
'%i|%u' % (3, 4)
'%10.3f|' % 3.14159
'%-10.3f|' % 3.14159
'%+.1e' % 0.0
'{} {}'.format(1, 'a')
'{0} {1} {0}'.format(1, 'a')
'{a} {b}'.format(a=1, b='x')
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:*^7}'.format('x')
'{:05d} {:+d} {: d}'.format(3, 4, 5)
'{:,} {:_}'.format(1234567, 1234567)
'{:x} {:#x} {:X} {:b} {:o}'.format(255, 255, 255, 5, 8)
'{:.2f} {:.0f} {:e} {:g}'.format(3.14159, 2.5, 12345.6, 0.00001)
'{:.3} {:.10}'.format(3.14159, 2.0)
'{:.3}'.format('abcdef')
'{:%}'.format(0.25)
'{:.1%}'.format(0.256)
'{!r} {!s}'.format('a', 'b')
'{0.role} {0[content]}'.format(messages[0])
'{{}} {}'.format(1)
'{:{}}|'.format('a', 5)
'{:{w}.{p}f}'.format(3.14159, w=8, p=2)
'{} {1}'.format(1, 2)
'{a}'.format(1)
'{}'.format()
'{:d}'.format('a')
'{:s}'.format(1)
'{} {} {}'.format(none, true, [1, 'a'])
'{:>6}'.format(true)
'{:10}|{:<10}|'.format(42, 42)
'{:,.2f}'.format(1234567.891)
'{:08,.1f}'.format(1234.5)
'{:=+8d}'.format(42)
'}'.format()
'{'.format()
'{:>5}'.format(none)
'{a[b]}'.format(a={'b': 3})
1 < 2
1 < 2 < 3
1 < 3 < 2
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
[1] == [1.0]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
nothing == false
nothing == missing
missing == missing
missing == other_missing
missing < 1
nothing < 1
1 != 1.0
'a' in s
'World' in s
1 in s
nothing in s
'a' in missing
missing in [1]
1 in numbers
true in numbers
'b' in d
'z' in d
1 in nothing
'a' not in s
not 1 in [1]
not (1 in [1])
'role' in messages[0]
2 in range(3)
not nothing
not missing
1 and 2
0 and 2
0 or 'x'
'' or 0 or none
1 if yes
1 if no
1 if no else 2
[1 if no else 2]
1 if yes else 2 if no else 3
s[0]
s[-1]
s[100]
s[1:4]
s[::-1]
s[:-1]
s[-3:]
s[::2]
s[5:2]
s[4:1:-1]
u[8:10]
u[::-1]
numbers[0]
numbers[-1]
numbers[9]
numbers[1:]
numbers[::-1]
numbers[:-1]
numbers[true]
numbers[1.0]
numbers['a']
numbers.0
numbers.9
d['b']
d['zz']
d.b
d.zz
d['x y']
d['items']
d.items()|list
d.items is string
d.items is callable
d['items'] is string
d['keys'] is defined
d.keys()
d.values()
d.items()
d.keys()|list
d.get('b')
d.get('zz')
d.get('zz', 5)
d.get('zz') is none
d.copy() == d
d.pop('b')
d.update({'a': 1})
d.nope()
schema.properties.items()|list|length
schema.properties.keys()|list
schema.properties['items']
schema.properties.items is mapping
schema['items'] is defined
schema['items']['type'] is defined
schema.missing is defined
schema.missing.x
deep.a.b[2].c
deep['a']['b'][2]['c']
deep.a.b.2.c
deep.x.y
deep.x is defined
nothing.x
nothing['x']
nothing[0]
nothing[1:]
missing.x
missing[0]
missing[1:]
n.x
n[0]
n[1:]
d[1:]
s.x
s['upper']()
numbers.append(1)
numbers.append is defined
numbers.index(1)
numbers.index(9)
numbers.index(1, 2)
numbers.count(1)
numbers.copy()
numbers.sort()
(1, 2, 1).count(1)
(1, 2).index(2)
s.upper()
s.lower()
s.title()
"they're bill's friends".title()
"they're bill's friends"|title
'hello wORLD'.capitalize()
'ßa'.capitalize()
'ßa'.upper()
'ABC'.swapcase()
'ÀÉ'.lower()
t.strip()
t.lstrip()
t.rstrip()
t.strip(' a')
'xxaxx'.strip('x')
'xxaxx'.lstrip('x')
'xxaxx'.rstrip('x')
'\x1ca\x1f'.strip()
t.split()
t.split(' ')
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.split(sep=',', maxsplit=1)
'a,b,c'.rsplit(',', 1)
'a,b,c'.rsplit(',')
'  a b  c '.split(none, 1)
'  a b  c '.rsplit(none, 1)
'  a b  c '.rsplit()
''.split()
''.split(',')
'a'.split('')
'a.b.c'.partition('.')
'a.b.c'.rpartition('.')
'abc'.partition('.')
'abc'.rpartition('.')
lines.splitlines()
lines.splitlines(true)
''.splitlines()
'-'.join(['a', 'b'])
'-'.join('abc')
'-'.join([1, 2])
'-'.join(d)
'aXbXc'.replace('X', '-')
'aXbXc'.replace('X', '-', 1)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
'aXb'.replace('X', 1)
'hello'.startswith('he')
'hello'.startswith('lo', 3)
'hello'.startswith('l', 2, 3)
'hello'.startswith(('x', 'he'))
'hello'.startswith(['x', 'he'])
'hello'.startswith('')
'hello'.startswith('', 6)
'hello'.endswith('lo')
'hello'.endswith(('x', 'lo'))
'hello'.endswith('l', 0, 4)
'hello'.find('l')
'hello'.find('l', 3)
'hello'.find('z')
'hello'.rfind('l')
'hello'.rfind('l', 0, 3)
'hello'.index('l')
'hello'.index('z')
'hello'.rindex('l')
'hello'.count('l')
'hello'.count('')
'hello'.count('l', 3)
u.find('中')
u.index('é')
'prefix-x'.removeprefix('prefix-')
'x.py'.removesuffix('.py')
'x'.removesuffix('')
'abc'.center(8)
'abc'.center(7, '*')
'ab'.center(7, '*')
'abc'.ljust(6, '.')
'abc'.rjust(6)
'42'.zfill(5)
'-42'.zfill(5)
'a\tb'.expandtabs()
'a\tb\n\tc'.expandtabs(4)
'a\tb'.expandtabs(tabsize=2)
'abc'.isalpha()
'ab1'.isalnum()
'12'.isdigit()
'12'.isnumeric()
'12'.isdecimal()
'1.5'.isdigit()
''.isdigit()
'中文'.isalpha()
'é1'.isalnum()
' \t\n'.isspace()
'Hello World'.istitle()
'Hello world'.istitle()
'ABC'.isupper()
'abc1'.islower()
'1'.islower()
'abc'.isascii()
u.isascii()
'a_1'.isidentifier()
'1a'.isidentifier()
'a\n'.isprintable()
u.isprintable()
'HeLLo'.casefold()
'{a}'.format_map({'a': 1})
n.bit_length
s.nope()
s.__class__
s.__class__ is defined
''.__class__.__mro__
s|upper
s|lower
n|upper
nothing|upper
missing|upper
'hELLO wORLD'|capitalize
'hello-world (a) [b] {c} <d>'|title
t|trim
t|trim(' a')
s|length
u|length
numbers|length
d|length
missing|length
nothing|length
n|length
missing|count
''|length
range(5)|length
d.items()|length
numbers|select|length
s|first
numbers|first
d|first
[]|first
missing|first
nothing|first
s|last
numbers|last
[]|last
d|last
missing|last
numbers|reverse|list
s|reverse
d|reverse|list
numbers|sort
numbers|sort(reverse=true)
letters|sort
letters|sort(case_sensitive=true)
letters|sort(true)
mixed|sort
rows|sort(attribute='v')|map(attribute='n')|list
rows|sort(attribute='v,n')|map(attribute='n')|list
letters|unique|list
letters|unique(true)|list
mixed|unique|list
[1, 1.0, true]|unique|list
numbers|min
numbers|max
letters|min
letters|max(true)
[]|min
rows|max(attribute='v')
numbers|sum
floats|sum
[]|sum
rows|sum(attribute='v')
rows|sum('v', 10)
letters|sum
pairs|sum(start=[])
numbers|join
numbers|join(', ')
mixed|join('|')
s|join('-')
rows|join(', ', attribute='n')
rows|join('.', 'k.p')
missing|join
nothing|join
numbers|list
s|list
d|list
range(3)|list
missing|list
nothing|list
n|list
numbers|string
n|string
none|string
'5'|int
' 42 '|int
'42.9'|int
'x'|int
'x'|int(7)
'1_000'|int
'ff'|int(0, 16)
'0xff'|int(0, 16)
'0b11'|int(base=0)
''|int
nothing|int
numbers|int
3.99|int
-3.99|int
true|int
missing|int
'1e3'|int
'inf'|int
'1.5'|float
'x'|float
'x'|float(2.5)
n|float
nothing|float
'1e-5'|float
'nan'|float
'-inf'|float
'1_0.5'|float
'  1.5 '|float
2.5|round
3.5|round
2.675|round(2)
1234.5678|round(1)
7|round
7|round(2)
2.1|round(0, 'ceil')
2.19|round(1, 'floor')
-2.5|round
2.5|round|int
'a'|round
-5|abs
-5.5|abs
'a'|abs
missing|default('x')
nothing|default('x')
nothing|default('x', true)
''|default('x', true)
''|d('x')
missing|default
missing|default(boolean=true, default_value=3)
'aXb'|replace('X', '-')
'aXbX'|replace('X', '-', 1)
'aXb'|replace('X', 1)
1213|replace(1, 'x')
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'a\nb'|indent('> ', first=true)
'a\r\nb\n'|indent(1)
''|indent
n|indent
'abcdef'|truncate(3)
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11, false, '..', 0)
'foo bar baz qux'|truncate(11)
'foo'|truncate(2, leeway=0)
100|filesizeformat
1|filesizeformat
1000|filesizeformat
1234567|filesizeformat
1234567|filesizeformat(true)
'5000'|filesizeformat
1e30|filesizeformat
'a b  c-d'|wordcount
'abc'|center(9)
'a'|center
html|e
html|escape
html|forceescape
html|safe
html|e|e
html|e|forceescape
html|safe|string
'<b>'|safe + html
html + '<b>'|safe
html ~ '<b>'|safe
('<b>'|safe) * 2
'<b>'|safe|upper
('<b>'|safe).upper() + '<'
'<b>'|safe|length
['<b>'|safe]
['<b>'|safe]|tojson
'<b>'|safe == '<b>'
html|e is escaped
html is escaped
html|tojson
q|tojson
u|tojson
u|tojson(true)
u|tojson(ensure_ascii=true)
'\x7f\x01\n'|tojson
d|tojson
d|tojson(indent=2)
d|tojson(indent=0)
d|tojson(indent='--')
d|tojson(false, 2)
d|tojson(separators=(',', ':'))
d|tojson(sort_keys=true)
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
[]|tojson(indent=2)
[[], {}, [1]]|tojson(indent=2)
missing|tojson
[missing]|tojson
(1, 2)|tojson
range(3)|tojson
d.keys()|tojson
numbers|select|tojson
mixed
mixed|tojson
{}
{'a': 1, 'b': [1, 'x', none]}
{1: 2, 'a': (1,)}
{n: s}
(1,)
()
(1, 2)
[]
q
[q]
['it\'s', "a\"b", 'a\\b', 'a\nb', '\t', 'é', '\x00', '\u200b', '\xad']
[html]
[u]
range(3)
range(1, 10, 3)
range(5)[1:3]
range(5)[::-1]
range(5)[2]
range(5, 0, -2)|list
range(0)|list
range(3) == range(0, 3)
range(100001)
range(1, 2, 0)
range('a')
dict(a=1, b=2)
dict([('a', 1), ['b', 2]])
dict(pairs)
dict(d, z=1)|length
dict(a=1)['a']
dict('ab')
namespace(a=1).a
namespace(a=1).b is defined
namespace(a=1)['a']
namespace(_a=1)
namespace({'a': 2}).a
cycler('a', 'b').next()
cycler()
joiner('|')()
lipsum is defined
numbers|batch(2)|list
numbers|batch(3, 'x')|list
numbers|slice(3)|list
numbers|slice(3, 'x')|list
d|dictsort
{'b': 1, 'A': 2}|dictsort
{'b': 1, 'A': 2}|dictsort(true)
{'b': 1, 'A': 2}|dictsort(by='value')
{'b': 1, 'A': 2}|dictsort(reverse=true)
{'b': 1, 'a': 2}|items|list
missing|items|list
numbers|items|list
rows|groupby('v')|list
rows|groupby('n')|map('first')|list
rows|map(attribute='n')|list
rows|map(attribute='k.p')|list
rows|map(attribute='k.p', default=0)|list
rows|map(attribute='zz')|list
letters|map('upper')|list
letters|map('replace', 'a', 'z')|list
numbers|map('string')|join
pairs|map('first')|list
pairs|map(attribute=0)|list
letters|map('nope')|list
numbers|select('odd')|list
numbers|select('gt', 1)|list
numbers|select('equalto', 1)|list
numbers|reject('odd')|list
mixed|select|list
mixed|select('string')|list
rows|selectattr('v', 'equalto', 2)|map(attribute='n')|list
rows|selectattr('v', '==', 2)|list|length
rows|selectattr('k')|list|length
rows|selectattr('k', 'defined')|list|length
rows|rejectattr('v', 'eq', 2)|map(attribute='n')|join
rows|selectattr('n', 'in', ['x', 'X'])|list|length
messages|selectattr('role', 'equalto', 'critic')|list
'yes' if messages|selectattr('role', 'equalto', 'critic') else 'no'
(numbers|select('odd'))|length
(numbers|map('string'))[0]
(numbers|select('odd'))|first
missing|map('upper')|list
missing|select('odd')|list
nothing|map('upper')|list
n|map('upper')|list
'a b&c/d'|urlencode
d.keys()|list|urlencode
{'a b': 'c&d', 'e': 1}|urlencode
s|attr('upper') is callable
d|attr('b') is defined
d|attr('items') is callable
rows|random
s|nope
s is nope
s|wordwrap(5)
s is defined
missing is defined
missing is undefined
missing is not defined
messages[0].nope is defined
messages[9] is defined
messages[0]['content'] is string
nothing is none
missing is none
yes is boolean
1 is boolean
yes is true
1 is true
no is false
0 is false
1 is integer
true is integer
1.0 is integer
1.0 is float
1 is float
1 is number
true is number
'1' is number
s is string
html|e is string
numbers is string
d is mapping
numbers is mapping
namespace(a=1) is mapping
s is sequence
numbers is sequence
d is sequence
n is sequence
nothing is sequence
missing is sequence
(1, 2) is sequence
range(3) is sequence
d.items() is sequence
numbers|select is sequence
s is iterable
numbers is iterable
d is iterable
n is iterable
nothing is iterable
missing is iterable
d.items() is iterable
numbers|select is iterable
range is callable
s is callable
s.upper is callable
missing is callable
d.get is callable
3 is odd
4 is even
-3 is odd
3.0 is odd
'a' is odd
9 is divisibleby 3
9 is divisibleby(4)
'abc' is lower
'ABC' is upper
1 is lower
1 is eq 1
1 is equalto(1.0)
1 is ne 2
1 is lt 2
2 is ge 2
'a' is in s
'a' is in ['a']
1 is not in [1]
'upper' is filter
'nope' is filter
'odd' is test
nothing is sameas none
yes is sameas true
1 is sameas true
s is defined and n is number
n is number and not s is number
not n is string
n is number == true
s is string | string
(s is string)|string
-1 is number
n + 1 is number
'a' 'b' "c"
'a\x41\u00e9\101\n'|tojson
'\d \/ \''
"\""
s.split(', ')[0].lower()[::-1]|upper|length
(n)
((n))
[n,]
{'a': 1,}
s|replace('l', 'L')|replace('o', '0')
messages[0]['content'][:3] + '...'
messages|map(attribute='role')|join(', ')
messages[1].tool_calls[0].function.arguments|tojson
messages[1]['content'] is defined
messages[2].content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join
messages[-1].role
messages[1:]|length
messages[::-1]|map(attribute='role')|list
messages|length - 1
(messages|length) % 2 == 1
loop is defined
raise_exception('no')
raise_exception(n)
f(1)
s()
*numbers
dict(**{'a': 1})
'{} {}'.format(*['a', 'b'])
'{a}'.format(**{'a': 1})
range(*[1, 3])|list
s|default(missing.x)
missing.x|default('a')
1 if missing.x is defined else 2
true and missing
[1, 2, 3][missing]
d[missing]
d[[1]]
{[1]: 2}
s[missing]
numbers[nothing]
n|tojson|length
1 ~ 2|string
'a'|upper ~ 'b'
not ''
0.0 == -0.0
1 == true and 0 == false
'A' < 'a'
'é' > 'z'
1000000 * 1000000 * 1000000
2 ** 100
9007199254740993 == 9007199254740993.0
100000000000000000000
1e15
1e16
123456.789e3
0.0001
0.00001
1.0
100.0
1/3
2/3
10**20
10.0**20
1e2|int
true ~ ''
(true, false)|list
"x" * 0
[] or {}
[] == ()
none ~ none
s|list|join
s|trim('H')|trim('d')
'a' if 'a' in 'abc' and not 'z' in 'abc' else 'b'
(1 if no) is defined
(1 if no) ~ 'x'
[i for i in numbers]
s;
{{ n
"""

# Whole templates.
TEMPLATES = [
    "a\r\nb\rc\n",
    "{% if yes %}\r\nx\r\n{% endif %}\r\ny",
    "line\n",
    "line\n\n",
    "  {% if yes %}  \n x {% endif %}\n y",
    "  {%+ if yes %}\n x {% endif +%}\n y",
    "a \n {%- if yes -%} \n b \n {%- endif -%} \n c",
    "{# c #}\nx {#- c -#} y\n  {# c #}\nz",
    "{% raw %}{{ n }}{% endraw %}\nx",
    "{%- raw -%} {{ n }} {%- endraw -%} x",
    "{{- n -}} x {{ n }}\n",
    "{{ '{{' }}{{ '}}' }}{{ '{%' }}{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ '\n' }}x",
    "{% for x in numbers %}{{ x }}{% endfor %}",
    "{% for x in numbers %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in numbers %}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}"
    "{% endfor %}",
    "{% for x in numbers if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in nothing %}{{ x }}{% endfor %}",
    "{% for x in n %}{{ x }}{% endfor %}",
    "{% for x in 'abc' %}{{ x }}-{% endfor %}",
    "{% for x in d %}{{ x }}-{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{{ loop.last }}{% endfor %}",
    "{% for (a, b) in pairs %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in numbers %}{{ a }}{% endfor %}",
    "{% for x in numbers|select('odd') %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% set g = numbers|select('odd') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in numbers %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}"
    "{% endfor %}",
    "{% for x in numbers %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% set y = 0 %}{% for x in numbers %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set ns = namespace(y=0) %}{% for x in numbers %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}",
    "{% if yes %}{% set y = 5 %}{% endif %}{{ y }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set (a, b) = pairs[0] %}{{ a }}{{ b }}",
    "{% set x %}hello {{ n }}{% endset %}{{ x|upper }}",
    "{% set x | upper %}hello{% endset %}{{ x }}",
    "{% set x | replace('l', 'L') | trim %} hello {% endset %}{{ x }}",
    "{% set ns._x = 1 %}",
    "{% set d.b = 1 %}",
    "{% filter upper %}hello {{ s }}{% endfilter %}",
    "{% filter replace('l', 'L')|upper %}hello{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=2) }}",
    "{% macro m(a) %}{{ a }}{{ n }}{% endmacro %}{{ m('x')|upper }}{{ m(1) + 'y' }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 3 %}{{ m() }}",
    "{% macro m(a) %}{% if a > 0 %}{{ a }}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m(varargs) %}{{ varargs }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{{ n }}{% endcall %}",
    "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m(3) %}{{ y + 1 }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{{ m.name }} {{ m is callable }}",
    "{% for x in numbers %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% generation %}{% set y = 1 %}a{% endgeneration %}{{ y is defined }}",
    "{% for x in numbers %}\n  {%- generation -%}\n x {{ x }}\n {%- endgeneration -%}\n{% endfor %}",
    "{% set ns = namespace(a=1) %}{% generation %}{% set ns.a = 2 %}{% endgeneration %}{{ ns.a }}",
    "{% print n, s %}",
    "{% print n %}\nx",
    "{% block b %}{{ n }}{% endblock %}{{ self.b() }}",
    "{% do numbers.append(1) %}",
    "{% nope %}",
    "{% if %}{% endif %}",
    "{% if yes %}",
    "{% endif %}",
    "{{ }}",
    "{{ n",
    "{% if yes",
    "{{ n }",
    "{# open",
    "{% if nope is foo %}{% endif %}",
    "{% if no %}{{ s|foo }}{% endif %}x",
    "{% if yes %}a{% elif no %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif yes %}b{% else %}c{% endif %}",
    "{% if messages|selectattr('role', 'equalto', 'critic') %}yes{% else %}no{% endif %}",
    "{% if tools is iterable and tools | length > 0 %}t{% else %}f{% endif %}",
    "{% if nothing is iterable %}t{% else %}f{% endif %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}"
    "{% set x = c.reset() %}{{ c.current }}",
    "{% set j = joiner('; ') %}{% for x in numbers %}{{ j() }}{{ x }}{% endfor %}",
    "{% set m = s.upper %}{{ m() }}{{ m is defined }}",
    "{% for k, v in schema.properties.items() %}{{ k }}:{{ v.type }};{% endfor %}",
    "{% for m in messages %}{{ m.role }}:{{ m.content if m.content is string else (m.content or '') }}\n{% endfor %}",
    "{%- for m in messages -%}\n{{- '<|' + m['role'] + '|>' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\nx"
    "{%- endif %}",
    "{% autoescape false %}{{ html }}{% endautoescape %}",
    "{% include 'x' %}",
    "{% if no %}{% include 'x' %}{% endif %}x",
    "{% set x = namespace() %}{% set x.list = [] %}{% for i in range(3) %}{% set x.list = x.list + [i] %}"
    "{% endfor %}{{ x.list }}",
    "{{ s }}{# c #}{{ n }}{% if yes %}\n\n{% endif %}\n",
    "{{ 1\n+\n2 }}\n{{ missing.x }}",
    "{%-if yes-%}a{%-endif-%}",
    "{%if yes%}a{%endif%}",
    "\n\n{% set x = 1 %}\n\n{{ x }}\n",
    "\t{% if yes %}\tx\t{% endif %}\t\n",
    "a {{ '' }} {%- if yes %} b{% endif %}",
    "{{ n }}\n{% if yes %}\n{{ n }}\n{% endif %}\n{{ n }}",
    "x{% set a = 'b' -%}   \n  y",
    "{% for x in numbers -%}\n  {{ x }},\n{%- endfor %}",
    "{% for x in [1, 2] %}{% for y in [3, 4] %}{{ loop.index }}{{ x }}{{ y }}{{ loop.depth }}"
    "{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in [1, 2] %}{% set outer = loop %}{% for y in [3, 4] %}{{ outer.index }}{{ loop.index }} {% endfor %}"
    "{% endfor %}",
    "{% set x = 1 %}{% with %}{% set x = 2 %}{{ x }}{% endwith %}{{ x }}",
    "{% macro m(x=missing) %}{{ x is defined }}{% endmacro %}{{ m() }}{{ m(1) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
    "{{ messages[0].content }}{{ messages[0]['content']|length }}{{ messages[0].get('name', 'critic') }}",
    # Scopes of blocks, and what precedes and follows them.
    "{% set x = 1 %}{% set c %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ c }}",
    "{% set x = 1 %}{% filter upper %}{% set x = 2 %}a{{ x }}{% endfilter %}{{ x }}",
    "{% set x = 1 %}{% for m in [] %}{% else %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% for a in numbers %}{% if a > 2 %}x{% else %}{% set y = a %}{{ y }}{% endif %}{% else %}none{% endfor %}",
    "{% raw %}\nx{% endraw %}\ny", "{% raw -%}\nx{%- endraw %}\ny", "{%- raw %}\n {{ x }}\n{% endraw -%}\ny",
    "{% for g in messages|groupby('role') %}{{ g.grouper }}:{{ g.list|length }};{{ g[0] }}{% endfor %}",
]

# What Python and Jinja have, and the program refuses by name: what changes with each run, what needs tables or
# libraries, and objects that no template prints.
NOT_SUPPORTED = {
    "rows|random", "s|wordwrap(5)", "d.items() == d.items()", "numbers|pprint", "html|striptags", "d|xmlattr",
    "s|urlize",
    "n.bit_length", "n.real", "'x'.encode()", "'²'.isdigit()", "1234|round(-2)",
    "100000000000000000000000000000000000000000",
    "2 ** 200", "('<b>'|safe) % html", "('<b>'|safe).format(html)", "('<b>'|safe).join(letters)", "namespace(a=1)",
    "range", "lipsum()", "'Straße'.casefold()", "s is sameas s", "[1, 2].__len__",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m() }}",
    "{% autoescape true %}{{ html }}{% endautoescape %}",
    "{% set loop = 1 %}{{ loop }}", "self is defined", "s.upper", "numbers|reverse", "dict.fromkeys",
    "rows|map('upper')",
    "'{[0]}'.format(numbers)", "{% macro m(a=1) %}{{ a }}{% endmacro %}{{ m(missing) }}",
    "{% macro n(x) %}{{ m(x, missing) }}{% endmacro %}{% macro m(a, b=1) %}{{ b }}{% endmacro %}[{{ n(1) }}]",
    "{% macro m() %}x{% endmacro %}{{ m }}", "{% for x in numbers %}{{ loop }}{% endfor %}",
}


def sources():
    expressions = [line for line in EXPRESSIONS.splitlines() if line]
    yield from (f"{{{{ {line} }}}}" for line in expressions)
    yield from TEMPLATES
    yield from sorted(source if source.startswith("{%") else f"{{{{ {source} }}}}" for source in NOT_SUPPORTED)


def rendered(source):
    """The text, or None where transformers refuses the template or stops at it."""
    # What is random is the same in every file that is made.
    random.seed(0)
    try:
        text = chat_template_utils._compile_jinja_template(source).render(**CONTEXT)
        text.encode("utf-8")
        # An address of memory is another each time.
        return None if " at 0x" in text else text
    except Exception:  # noqa: BLE001, whatever Python raises is a refusal
        return None


def names():
    environment = chat_template_utils._compile_jinja_template("").environment
    values = {"''": "", "[]": [], "()": (), "{}": {}, "1": 1, "1.5": 1.5, "true": True, "range(3)": range(3)}
    own = {source: [name for name in dir(value) if not name.startswith("_")] for source, value in values.items()}
    is_defined = {source: {name: rendered(f"{{{{ ({source}).{name} is defined }}}}") == "True" for name in found}
                  for source, found in own.items()}
    return {
        "filters": sorted(environment.filters), "tests": sorted(environment.tests),
        "globals": sorted(environment.globals),
        "attributes": is_defined,
    }


def text():
    refused = {source if source.startswith("{%") else f"{{{{ {source} }}}}" for source in NOT_SUPPORTED}
    cases = [[source, rendered(source), *(["not supported"] if source in refused else [])] for source in sources()]
    made = {"context": CONTEXT, "names": names(), "cases": cases}
    return json.dumps(made, ensure_ascii=False, indent=None, separators=(",", ": ")).replace('],["', '],\n["') + "\n"


if __name__ == "__main__":
    text_golden.main(__doc__, PINNED, OUT, text)
