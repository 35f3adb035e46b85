#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_chat_templates.py PROGRAM: what chat templates make of conversations, beside jinja2 as
transformers sets it up. Where jinja2 is not installed, its recorded answers serve; with --record they
are written anew. The templates say in short what those of well-known models do."""
import hashlib
import json
import os
import subprocess
import sys

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'chat_templates.json')

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEMPLATES = {
    'chatml': CHATML,
    # a system message of the template's own, with its line ends in the string
    'smollm2': """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI, named Smol.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    'qwen2': "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
             "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
             "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
             "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    'qwen2.5': """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # thoughts of answers before the last question are left out
    'qwen3': """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    'zephyr': """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    'llama2': "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
              "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = "
              "messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages "
              "%}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
              "raise_exception('roles must alternate') }}{% endif %}{% if loop.index0 == 0 and "
              "system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
              "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = "
              "message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + "
              "'[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
              "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    'llama3': "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
              "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
              "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = "
              "bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if "
              "add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
              "{% endif %}",
    'llama3.1': """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message, without which the rest would be off. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {{- raise_exception("no tools here") }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- message.tool_calls | tojson(indent=4) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    'mistral-v1': "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = "
                  "messages[0]['content'] %}\n    {%- set loop_messages = messages[1:] %}\n{%- else %}"
                  "\n    {%- set loop_messages = messages %}\n{%- endif %}\n\n{{- bos_token }}\n"
                  "{%- for message in loop_messages %}\n    {%- if message['role'] == 'user' %}\n"
                  "        {%- if loop.first and system_message is defined %}\n            {{- "
                  "' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}\n"
                  "        {%- else %}\n            {{- ' [INST] ' + message['content'] + ' [/INST]' "
                  "}}\n        {%- endif %}\n    {%- elif message['role'] == 'assistant' %}\n"
                  "        {{- ' ' + message['content'] + eos_token}}\n    {%- else %}\n        {{- "
                  "raise_exception('Only user and assistant roles are supported') }}\n"
                  "    {%- endif %}\n{%- endfor %}\n",
    'mistral-v3': """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
""",
    'mistral-v7': "{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
                  "{{- '[INST] ' + message['content'] + '[/INST]' }}{%- elif message['role'] == "
                  "'system' %}{{- '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}"
                  "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}",
    'gemma': "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role "
             "not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == "
             "'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
             "{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
             "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + "
             "message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if "
             "add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}",
    'chatml-eos': "{{ bos_token }}{% for m in messages if m.content %}<|im_start|>{{ m.role }}\n"
                  "{{ m.content }}{{ eos_token }}\n{% else %}nothing{% endfor %}"
                  "{%- if add_generation_prompt -%}\n<|im_start|>assistant\n{% endif %}",
    'spaces': "  {% if true %}  \n  a {%- if true +%}  \n b{% endif %}\n\n{# c\n #}\n  {#- d -#}  e"
              "\n{{ 'f' }}\n  {{- ' g' -}}\n   h\n {% set x = 1 %}\n{% endif %}\r\ni\r\n",
    'scopes': "{% set x = 'a' %}{% for m in messages %}{{ x }}{% set x = x + m.role[0] %}{{ x }}"
              "{{ loop.index }}{{ loop.revindex0 }}{{ loop.previtem.role if loop.previtem is defined }}"
              "{{ loop.length }}{% if loop.last %}{% set x = 'z' %}{% endif %}{{ x }};{% endfor %}{{ x }}",
    'texts': "{% for m in messages %}[{{ m.content|trim }}|{{ m.content.strip() }}|{{ m.content.lstrip() }}"
             "|{{ m.content.rstrip('\\n') }}|{{ m.content|length }}|{{ m.content.split('[')|join('/') }}"
             "|{{ m.content.replace('{', 'x') }}|{{ m.content[1:3] }}|{{ m.content[-1:] }}|{{ m.content[::-1] }}"
             "|{{ 'a' in m.content }}|{{ m.content|first }}{{ m.content|last }}]{% endfor %}",
    'numbers': "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 + 3 * 4 - 1 }} {{ 1 ~ (2 + 3) }} "
               "{{ -1 | string }} {{ 3 > 2 and 2 > 3 or 'x' }} {{ not 1 == 2 }} {{ 1 if 0 else 2 if 0 else 3 }} "
               "{{ range(5)|list|length }}{% for i in range(5, 0, -2) %}{{ i }}{% endfor %} "
               "{{ [1, 2][1] }}{{ {'a': 5}['a'] }}{{ {'a': 5}.b is defined }} {{ [1, 2] == [1, 2] }} "
               "{{ true == 1 }} {{ none is none }} {{ 'a' 'b' }} {{ 'x' * 2 if false else 'y' }} "
               "{{ (1, 2)[0] }} {{ 'b' not in ['a'] }} {{ undefined_name }} {{ undefined_name|default('d') }} "
               "{{ ''|d('e', true) }} {{ [3,4,5][::-1]|first }} {{ [3,4,5][-2:]|last }} {{ 3 is odd }} "
               "{{ 'a' is in ['a'] }} {{ 4 is not odd }} {{ {'k': 'v'}.items()|list|length }}"
               "{% for k, v in {'k': 'v'}.items() %}{{ k }}={{ v }}{% endfor %}",
}

WORDS = ['<|im_start|>', '[INST] x [/INST]', '{{ 1 }} {% if %}', '"quoted" and \'quoted\'', ' both ends ',
         '\n\nlines\n\n', '', '<<SYS>>\nx\n<</SYS>>', 'a\\nb', '</s><|eot_id|>', 'gr\u00fc\u00dfe \u4e16\u754c',
         '\u00a0wide\u3000', '{# c #}', '<think>\nx\n</think>\n\ny', '[', 'a]b[c']


def conversations():
    """With and without a system message, of one and several turns, with each word in each place."""
    out = []
    for word in WORDS:
        for system in ([], [['system', 'Be good.']], [['system', word]]):
            one = system + [['user', word]]
            out += [one, one + [['assistant', 'An answer.'], ['user', ' More? ']],
                    system + [['user', 'Hello']] + [['assistant', word], ['user', word]] * 2]
    out.append([['user', 'a'], ['user', 'b']])
    return out


def jinja():
    """What renders as transformers does, or None."""
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message):
        raise TemplateError(message)
    env.globals['raise_exception'] = raise_exception

    known = {}

    def render(template, messages, prompt):
        if template not in known:
            known[template] = env.from_string(template)
        try:
            return known[template].render(
                messages=[{'role': r, 'content': c} for r, c in messages], tools=None,
                documents=None, add_generation_prompt=prompt, bos_token='<s>', eos_token='</s>')
        except (TemplateError, TypeError):
            return None
    return render


def digest(texts):
    """Of what is rendered without and with a prompt for an answer; None of an error."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]


def case(template, messages, prompt):
    """What the program reads."""
    texts = [text.encode() for text in (template, '<s>', '</s>')]
    out = b'%d %d %d %d %d\n' % (*map(len, texts), prompt, len(messages)) + b''.join(texts)
    for message in messages:
        parts = [part.encode() for part in message]
        out += b'%d %d\n' % (len(parts[0]), len(parts[1])) + b''.join(parts)
    return out


def ours(program, cases):
    """The text of each case, None where it is refused, and the error."""
    run = subprocess.run([program], input=b''.join(case(*c) for c in cases), stdout=subprocess.PIPE,
                         check=True)
    data, out = run.stdout, []
    for _ in cases:
        head, data = data.split(b'\n', 1)
        status, count = map(int, head.split())
        text, data = data[:count].decode(), data[count:]
        out.append((text if status == 0 else None, text))
    return out


# What is no part of the language here, or leads nowhere: refused, with a reason.
REFUSED = {
    '{{ messages | tojson }}': "the filter 'tojson' of a list is not known",
    '{{ 1.5 }}': 'a number with a point', '{{ 7 / 2 }}': 'numbers with points', '{{ 2 ** 3 }}': '**',
    '{{ 1 / 0 }}': 'a division by 0', '{{ x.y }}': "'y' of what is undefined", '{{ f() }}': "'f'",
    '{% block a %}{% endblock %}': "the statement 'block' is not known", '{% if 1 %}': 'endif',
    '{% macro f(x) %}a{% endmacro %}{{ f(1) }}': "the function 'f' is not known",
    '{% for m in messages recursive %}{% endfor %}': "'recursive'", '{{ 1 < 2 < 3 }}': 'one comparison',
    '{{ "\\q" }}': 'the escape', '{{ "a': 'does not end', '{# a': 'does not end', '{{ a': 'does not end',
    '{{ messages }}': 'a list is printed', '{{ messages[0].content.title() }}': "the method 'title'",
    '{{ 1 + "a" }}': "'+' of an integer and a text", '{{ raise_exception("no\x1b[2J") }}': 'this: no?[2J',
    '{{ 1 | \x1b }}': "'?'", '{% for i in range(1000000) %}{% endfor %}': 'a range of more than',
    '{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}': 'takes more than',
    '{% set ns = namespace(a="aa") %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}':
        'bytes',
    '{% set ns = namespace(a="aa") %}{% for i in range(16) %}{% set ns.a = ns.a + ns.a %}{% endfor %}'
    '{% for i in range(99999) %}{{ ns.a == ns.a }}{{ ns.a | length }}{% endfor %}': 'steps',
    '{{ ' + '(' * 5000 + '1' + ')' * 5000 + ' }}': 'levels', '{{ ' + '-' * 5000 + '1 }}': 'levels',
    '{{ ' + 'not ' * 5000 + '1 }}': 'levels', '{% if 1 %}' * 5000: 'levels',
    '{% if 0 %}' + '{% elif 0 %}' * 5000 + '{% endif %}': 'levels', '{{ ' + '[' * 5000 + '}}': 'levels',
    '{{ 1' + ' + 1' * 99999 + ' }}': 'levels', '{{ x' + '.x' * 99999 + ' }}': 'levels',
    '{{ 1' + ' | string' * 99999 + ' }}': 'levels', '{{ 1' + ' if 1' * 99999 + ' }}': 'levels',
}


def check_refused(program):
    talk = [['user', 'Hello']]
    failures = 0
    for (template, reason), (text, error) in zip(
            REFUSED.items(), ours(program, [(template, talk, 0) for template in REFUSED])):
        if text is not None or reason not in error or not error.startswith('line 1: '):
            failures += 1
            print('FAIL', template[:80], repr(text), error)
    return failures


def main():
    render = jinja()
    talks = conversations()
    answers = {name: [digest([render(template, talk, prompt) for prompt in (0, 1)]) for talk in talks]
               for name, template in TEMPLATES.items()} if render else None
    if sys.argv[1:] == ['--record']:
        with open(RECORDED, 'w') as file:
            json.dump(answers, file, indent=0)
        return
    with open(RECORDED) as file:
        recorded = json.load(file)
    assert answers in (None, recorded), 'the recorded answers are not those of this jinja2'
    failures = check_refused(sys.argv[1])
    for name, template in TEMPLATES.items():
        got = ours(sys.argv[1], [(template, talk, prompt) for talk in talks for prompt in (0, 1)])
        assert len(recorded[name]) == len(talks)
        for i, (talk, wanted) in enumerate(zip(talks, recorded[name])):
            pair = got[2 * i:2 * i + 2]
            if digest([text for text, _ in pair]) != wanted:
                failures += 1
                if failures < 10:
                    print('FAIL', name, talk, pair, [render(template, talk, p) for p in (0, 1)] if render else '')
    print(failures, 'failed, beside', 'jinja2' if render else 'its recorded answers')
    sys.exit(failures > 0)


main()
