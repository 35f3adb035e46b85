// SPDX-License-Identifier: Apache-2.0
// The chat of `tamis serve`: asks, shows the answer while it comes, and draws which pages it read.
// What the server sends enters the page as text alone.
'use strict';

const FILE_BYTES = 1 << 20;
const PAINT_MS = 150; // between two drawings of an answer that is still coming
const ROW_PX = [4, 14]; // least and greatest height of a layer in the map
const PARTS = 4; // of the pages, in the table

const byId = id => document.getElementById(id);
const number = (value, digits = 0) =>
    value.toLocaleString('en', {minimumFractionDigits: digits, maximumFractionDigits: digits});
const percent = share => {
    const digits = share > 0 && share < 0.1 ? 1 : 0;
    return `${number(100 * share, digits)}%`;
};

// ---------------------------------------------------------------- talking with the server

class Refusal extends Error {}

function reasonOf(error) {
    const reason = error?.message || 'The server gave no reason.';
    return error?.param && !reason.includes(error.param) ? `${reason} (${error.param})` : reason;
}

async function call(path, options = {}) {
    const headers = {...options.headers};
    const key = byId('key').value.trim();
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
        response = await fetch(path, {...options, headers});
    } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new Refusal('The server cannot be reached.');
    }
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    throw new Refusal(`The server answered ${response.status}: ${reasonOf(body?.error)}`);
}

// The events of a stream in the format of server-sent events. The browser's own EventSource cannot
// send a request's body.
async function* eventsOf(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    let event = {name: '', data: []};
    try {
        for (;;) {
            const {value, done} = await reader.read();
            if (done) return;
            const lines = (rest + value).split('\n');
            rest = lines.pop();
            for (const line of lines.map(line => line.replace(/\r$/, ''))) {
                const [, field, text] = /^([^:]*):? ?(.*)/s.exec(line);
                if (field === 'data') event.data.push(text);
                if (field === 'event') event.name = text;
                if (line) continue;
                if (event.data.length) yield {name: event.name, data: event.data.join('\n')};
                event = {name: '', data: []};
            }
        }
    } finally {
        reader.cancel().catch(() => {}); // who stops listening hangs up
    }
}

// The chunks of an answer. It throws where the stream tells an error or ends too early.
async function* chunksOf(request, signal) {
    const response = await call('v1/chat/completions', {
        method: 'POST',
        headers: {'Content-Type': 'application/json'},
        body: JSON.stringify(request),
        signal,
    });
    let ended = false;
    for await (const {name, data} of eventsOf(response)) {
        ended = data === '[DONE]';
        if (ended) continue;
        const chunk = JSON.parse(data);
        if (name === 'error' || chunk.error) throw new Refusal(reasonOf(chunk.error ?? chunk));
        yield chunk;
    }
    if (!ended) throw new Refusal('The connection ended before the answer did.');
}

async function loadModel() {
    try {
        const {data} = await (await call('v1/models')).json();
        byId('model').textContent = data[0].id;
        tell('');
    } catch (error) {
        byId('model').textContent = '';
        tell(error instanceof Refusal ? error.message : 'The server names no model.');
    }
}

// ---------------------------------------------------------------- which pages were read

// What the tokens of an answer read. Tokens held different numbers of pages. All are put on one
// axis, which has the pages of the token that held the most.
class Reads {
    tokens = []; // {of, layers: digits of each layer, whole: their mean, part: its text's element}
    pages = 0;
    layers = 0;

    add(entries, part) {
        for (const {of, layers} of Array.isArray(entries) ? entries : []) {
            const known = of > 0 && Array.isArray(layers) && layers.length > 0 &&
                layers.every(row => /^[0-9]+$/.test(row) && row.length === layers[0].length);
            if (!known) continue;
            const digits = layers.map(row => Uint8Array.from(row));
            const whole = Float64Array.from(digits[0],
                (_, bin) => digits.reduce((sum, row) => sum + row[bin], 0) / digits.length);
            this.tokens.push({of, layers: digits, whole, part});
            this.pages = Math.max(this.pages, of);
            this.layers = Math.max(this.layers, layers.length);
        }
    }

    get bins() {
        return Math.min(this.pages, 128);
    }

    // The mean share of each bin over some tokens, in a layer or in all; NaN where none held it.
    mean(tokens, layer = null) {
        const sum = new Float64Array(this.bins);
        const count = new Float64Array(this.bins);
        for (const token of tokens) {
            const row = layer === null ? token.whole : token.layers[layer];
            if (row) this.#addRow(sum, count, row, token.of);
        }
        return sum.map((total, i) => total / count[i]);
    }

    #addRow(sum, count, row, of) {
        for (let i = 0; i < sum.length; ++i) {
            const page = (i + 0.5) * this.pages / sum.length;
            if (page >= of) return;
            sum[i] += row[Math.floor(page * row.length / of)] / 9;
            ++count[i];
        }
    }
}

// The mean of those shares of a row that are there.
function meanOf(row) {
    const there = row.filter(share => !Number.isNaN(share));
    return there.reduce((sum, share) => sum + share, 0) / there.length;
}

// The page's colours for shares from 0 to 1, as the style sheet names them for the scheme in use.
function shades() {
    const style = getComputedStyle(document.documentElement);
    const stops = ['--none', '--some', '--all'].map(name => {
        const hex = style.getPropertyValue(name).trim();
        return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
    });
    return share => {
        const from = share < 0.5 ? 0 : 1;
        return stops[from].map((low, i) => low + (stops[from + 1][i] - low) * (2 * share - from));
    };
}

// One row of pixels for each row of shares; the style sheet stretches them.
function draw(canvas, rows) {
    const shade = shades();
    canvas.width = rows[0].length;
    canvas.height = rows.length;
    const image = new ImageData(canvas.width, canvas.height);
    rows.forEach((row, y) => row.forEach((share, x) => {
        if (Number.isNaN(share)) return; // stays transparent
        image.data.set([...shade(share), 255], 4 * (y * canvas.width + x));
    }));
    canvas.getContext('2d').putImageData(image, 0, 0);
}

// ---------------------------------------------------------------- one question and its answer

class Turn {
    static count = 0;
    reads = new Reads();
    answer = '';
    waited = 0; // seconds

    constructor(question) {
        const copy = byId('turn').content.cloneNode(true);
        this.elements = [...copy.children];
        const [asked, answered] = this.elements;
        asked.querySelector('.text').textContent = question;
        this.find = selector => answered.querySelector(selector);
        this.open = this.find('.open');
        this.slider = this.find('.step input');
        this.table = this.find('.panel details');
        this.find('.panel').id = `reads-${++Turn.count}`;
        this.open.setAttribute('aria-controls', this.find('.panel').id);
        this.open.addEventListener('click', () => this.toggle());
        this.slider.addEventListener('input', () => this.paint());
        this.table.addEventListener('toggle', () => this.paint());
        byId('turns').append(copy);
    }

    wait() {
        this.find('.text').classList.add('coming');
        const say = () => {
            const time = this.waited ? `, ${this.waited} s` : '';
            if (!this.answer) this.note(`The prompt is being read${time}`);
            ++this.waited;
        };
        say();
        this.clock = setInterval(say, 1000);
    }

    take(chunk) {
        const text = chunk.choices?.[0]?.delta?.content ?? '';
        const part = document.createElement('span');
        part.textContent = text;
        if (text) this.find('.text').append(part);
        if (text && !this.answer) this.note('');
        this.answer += text;
        const reason = chunk.choices?.[0]?.finish_reason;
        if (reason === 'length') this.note('Ended by the limit of tokens.');
        this.reads.add(chunk.tamis?.reads, part);
        if (!chunk.choices?.length) this.showCost(chunk.tamis ?? {}, chunk.usage ?? {});
        this.paintSoon();
    }

    end(note) {
        clearInterval(this.clock);
        this.find('.text').classList.remove('coming');
        if (note) this.note(note);
        this.paint();
    }

    note(text) {
        this.find('.note').textContent = text;
    }

    remove() {
        clearInterval(this.clock);
        this.elements.forEach(element => element.remove());
    }

    // Each item is a figure and what it counts. A server leaves out what it does not know.
    showCost(tamis, usage) {
        const cached = tamis.cached_tokens ?? usage.prompt_tokens_details?.cached_tokens;
        const {loaded, computed} = tamis.documents ?? {};
        const items = [
            [usage.completion_tokens, number, usage.completion_tokens === 1 ? 'token' : 'tokens'],
            [tamis.tokens_per_second, value => number(value, 1), 'tokens/s'],
            [tamis.first_token_seconds, value => `${number(value, 2)} s`, 'to the first token'],
            [tamis.pages_held > 0 ? tamis.pages_read / tamis.pages_held : null, percent,
                'of the cache read'],
            [cached, number, 'tokens of the prompt reused'],
            [loaded || null, number, 'tokens of the text loaded'],
            [computed || null, number, 'tokens of the text computed'],
        ].filter(([value]) => Number.isFinite(value));
        const list = this.find('.cost');
        if (items.length) list.replaceChildren(...items.map(([value, format, name]) => {
            const item = document.createElement('li');
            const figure = document.createElement('strong');
            figure.textContent = format(value);
            item.append(figure, ` ${name}`);
            return item;
        }));
        list.hidden = list.children.length === 0;
    }

    toggle() {
        const panel = this.find('.panel');
        panel.hidden = !panel.hidden;
        this.open.setAttribute('aria-expanded', String(!panel.hidden));
        this.paint();
    }

    paintSoon() {
        this.timer ??= setTimeout(() => this.paint(), PAINT_MS);
    }

    paint() {
        clearTimeout(this.timer);
        this.timer = undefined;
        const {reads} = this;
        if (!reads.tokens.length) return;
        follow(() => {
            this.find('.reads').hidden = false;
            draw(this.find('.strip'), [reads.mean(reads.tokens)]);
            if (!this.find('.panel').hidden) this.paintPanel();
            else this.mark(null);
        });
    }

    // The map, of all tokens or of the one at which the slider stands.
    paintPanel() {
        const {reads, slider} = this;
        slider.max = reads.tokens.length;
        const at = Number(slider.value);
        const tokens = at ? [reads.tokens[at - 1]] : reads.tokens;
        const rows = Array.from({length: reads.layers}, (_, layer) => reads.mean(tokens, layer));
        const canvas = this.find('.map canvas');
        draw(canvas, rows);
        const height = Math.min(Math.max(260 / reads.layers, ROW_PX[0]), ROW_PX[1]);
        canvas.style.height = `${Math.round(height) * reads.layers}px`;
        this.mark(at ? tokens[0].part : null);
        this.label(at, tokens, meanOf(reads.mean(tokens)));
        if (this.table.open) this.fillTable(rows);
    }

    label(at, tokens, share) {
        const {reads} = this;
        const total = number(reads.tokens.length);
        const text = tokens[0].part.textContent; // none while it is half a character
        const which = at ? `${number(at)} of ${total}${text && `: “${text}”`}`
            : `all ${total}, their mean`;
        const who = at ? 'This token' : 'A token';
        const over = at ? 'layers' : 'tokens and layers';
        const held = number(at ? tokens[0].of : reads.pages);
        const sentence = `${who} read ${percent(share)} of ${held} pages, on average over ${over}.`;
        this.find('.which').textContent = which;
        this.slider.setAttribute('aria-valuetext', which);
        this.find('.share').textContent = sentence;
        this.find('.map canvas').setAttribute('aria-label',
            `Layers by pages: ${sentence} The table below has each layer.`);
        const ends = [['layers', 'layer', reads.layers], ['pages', 'page', reads.pages]];
        for (const [side, name, count] of ends) {
            const [first, last] = this.find(`.${side}`).children;
            first.textContent = `${name} 0`;
            last.textContent = count > 1 ? `${name} ${number(count - 1)}` : '';
        }
        this.find('.absent').hidden = reads.tokens[0].of === reads.pages;
    }

    // A layer's share of all pages, then of equal parts of them from the first page to the last.
    fillTable(rows) {
        const parts = Math.min(PARTS, this.reads.bins);
        const edge = (part, of) => Math.round(part * of / parts);
        const row = (tag, name, cells) => {
            const line = document.createElement('tr');
            line.append(...[name, ...cells].map((text, i) => {
                const cell = document.createElement(i ? tag : 'th');
                if (cell.tagName === 'TH') cell.scope = tag === 'th' ? 'col' : 'row';
                cell.textContent = text;
                return cell;
            }));
            return line;
        };
        const names = Array.from({length: parts}, (_, i) =>
            `${edge(i, this.reads.pages)}–${edge(i + 1, this.reads.pages) - 1}`);
        const shown = share => Number.isNaN(share) ? '–' : percent(share);
        this.find('thead').replaceChildren(row('th', 'Layer', ['all pages', ...names]));
        this.find('tbody').replaceChildren(...rows.map((shares, layer) => row('td', layer, [
            shown(meanOf(shares)),
            ...names.map((_, i) => shown(meanOf(
                shares.slice(edge(i, shares.length), edge(i + 1, shares.length))))),
        ])));
    }

    mark(part) {
        this.marked?.classList.remove('marked');
        part?.classList.add('marked');
        this.marked = part;
    }
}

// ---------------------------------------------------------------- the chat

let messages = []; // without the system text, which the settings hold
let turns = [];
let running = null; // the AbortController of the answer that is coming

function tell(error) {
    byId('error').textContent = error;
}

// Runs `change`, and scrolls to the end of the page if the reader was there before.
function follow(change) {
    const {scrollHeight} = document.documentElement;
    const atEnd = window.scrollY + window.innerHeight >= scrollHeight - 40;
    change();
    if (atEnd && running) window.scrollTo(0, document.documentElement.scrollHeight);
}

function requestOf(conversation) {
    const request = {
        model: byId('model').textContent || undefined,
        messages: conversation,
        stream: true,
        stream_options: {include_usage: true},
        reads: true, // this server's own field
    };
    const system = byId('system').value;
    if (system.trim()) request.messages = [{role: 'system', content: system}, ...conversation];
    const numbers = [['temperature', 'temperature'], ['max_tokens', 'max-tokens']];
    for (const [field, id] of numbers)
        if (byId(id).value !== '') request[field] = byId(id).valueAsNumber;
    return request;
}

// A text is part of the first question, so that the server may use its K and V again in each turn.
function messageOf(question) {
    const text = byId('text').value;
    if (messages.length || !text.trim()) return {role: 'user', content: question};
    return {role: 'user', content: [{type: 'document', text}, {type: 'text', text: question}]};
}

function showRunning(is) {
    const focused = [byId('stop'), byId('send')].includes(document.activeElement);
    byId('stop').hidden = !is;
    byId('send').hidden = is;
    if (focused) byId('question').focus();
}

function showText() {
    const locked = messages.length > 0;
    const {length} = byId('text').value;
    const size = length === 1 ? '1 character' : `${number(length)} characters`;
    byId('text').readOnly = byId('file').disabled = locked;
    byId('text-state').textContent = locked
        ? (length ? `${size}, sent with the first question. ` : '') +
            'A new chat can have another text.'
        : length ? `${size}, to be sent with the first question.`
            : 'Optional. It is sent with the first question.';
}

function settingsAreValid() {
    if (byId('settings').checkValidity()) return true;
    byId('settings-part').open = true; // the browser points at the field
    byId('settings').reportValidity();
    return false;
}

async function ask() {
    const question = byId('question').value;
    if (running || !question.trim() || !settingsAreValid()) return;
    const chat = messages;
    const controller = running = new AbortController();
    const turn = new Turn(question);
    tell('');
    byId('welcome').hidden = true;
    byId('question').value = '';
    chat.push(messageOf(question));
    turns.push(turn);
    showText();
    showRunning(true);
    byId('status').textContent = 'The answer is coming.';
    turn.wait();
    window.scrollTo(0, document.documentElement.scrollHeight);
    let reason = '';
    try {
        for await (const chunk of chunksOf(requestOf(chat), controller.signal))
            follow(() => turn.take(chunk));
    } catch (error) {
        reason = error instanceof Refusal ? error.message
            : `The answer broke off: ${error.message}`;
    }
    if (chat === messages) finish(turn, question, reason, controller.signal.aborted);
}

// Nothing that was typed is lost: a question without any answer goes back to where it was typed.
function finish(turn, question, reason, stopped) {
    running = null;
    turn.end(stopped ? 'Stopped.' : reason && 'Broken off.');
    if (turn.answer) {
        messages.push({role: 'assistant', content: turn.answer});
    } else if (reason) {
        messages.pop();
        turns.pop();
        turn.remove();
        const typed = byId('question').value;
        byId('question').value = typed ? `${question}\n${typed}` : question;
        byId('welcome').hidden = messages.length > 0;
    } else {
        turn.note('The answer is empty.');
        messages.push({role: 'assistant', content: ''});
    }
    showText();
    showRunning(false);
    if (!stopped) tell(reason);
    byId('status').textContent = stopped ? 'Stopped.' : reason ? '' : 'The answer is complete.';
}

function newChat() {
    messages = [];
    turns.forEach(turn => turn.remove());
    turns = [];
    running?.abort();
    running = null;
    byId('welcome').hidden = false;
    byId('status').textContent = 'A new chat.';
    tell('');
    showText();
    showRunning(false);
    byId('question').focus();
}

// ---------------------------------------------------------------- the fields

async function addFile() {
    const [file] = byId('file').files;
    if (!file) return;
    const say = text => byId('file-state').textContent = text;
    byId('file').value = ''; // so that the same file can be chosen again
    if (file.size > FILE_BYTES) return say(`${file.name} is larger than 1 MB. It was not added.`);
    try {
        const bytes = await file.arrayBuffer();
        const text = new TextDecoder('utf-8', {fatal: true}).decode(bytes);
        if (text.includes('\0')) throw new TypeError();
        const field = byId('text');
        if (field.readOnly) return say('');
        field.value += (field.value ? '\n\n' : '') + text;
        showText();
        say(`${file.name} was added.`);
    } catch {
        say(`${file.name} is not a text in UTF-8. It was not added.`);
    }
}

function onKey(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
}

function begin() {
    const wide = matchMedia('(min-width: 60rem)').matches;
    byId('text-part').open = wide;
    byId('key').value = sessionStorage.getItem('key') ?? '';
    byId('key').addEventListener('change', () => {
        sessionStorage.setItem('key', byId('key').value.trim());
        loadModel();
    });
    document.addEventListener('submit', event => event.preventDefault()); // no form leaves the page
    byId('ask').addEventListener('submit', ask);
    byId('question').addEventListener('keydown', onKey);
    byId('stop').addEventListener('click', () => running?.abort());
    document.addEventListener('keydown', event => event.key === 'Escape' && running?.abort());
    byId('new').addEventListener('click', newChat);
    byId('text').addEventListener('input', showText);
    byId('file').addEventListener('change', addFile);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change',
        () => turns.forEach(turn => turn.paint()));
    showText();
    loadModel();
    if (wide) byId('question').focus();
}

begin();
