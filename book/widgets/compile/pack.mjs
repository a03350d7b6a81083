// Bytes as text, so that a script can bring them to a page that is opened from a disk too: each
// character holds 7 bits, which takes a third less than base64 adds.

const GZIP = 0x1f; // the first byte
// Words of xz-embedded's struct: the room of both buffers, then address, at and size of each.
const [ROOM, INPUT, READ, GIVEN, OUTPUT, MADE] = [0, 1, 2, 3, 4, 5];
const GOES_ON = 0,
  ENDED = 1;

/** @param {string[]} parts */
function bytes_of(parts) {
  const length = parts.reduce((sum, part) => sum + part.length, 0),
    bytes = new Uint8Array(Math.floor((7 * length) / 8));
  let at = 0,
    held = 0,
    bits = 0;
  for (const part of parts)
    for (let i = 0; i < part.length; ++i) {
      held = (held << 7) | part.charCodeAt(i);
      bits += 7;
      if (bits >= 8) {
        bits -= 8;
        bytes[at++] = held >> bits;
      }
    }
  return bytes;
}

/**
 * What bytes of xz hold, piece by piece.
 * @param {Uint8Array} bytes @param {WebAssembly.Instance} decoder
 */
function* pieces(bytes, decoder) {
  const { create_context, supply_input, get_next_output } = /** @type {any} */ (decoder.exports),
    memory = /** @type {WebAssembly.Memory} */ (decoder.exports.memory),
    at = create_context();
  for (let given = 0, state = GOES_ON; state !== ENDED; ) {
    let words = new Uint32Array(memory.buffer, at);
    if (words[READ] === words[GIVEN]) {
      const part = bytes.subarray(given, given + words[ROOM]);
      new Uint8Array(memory.buffer, words[INPUT]).set(part);
      supply_input(at, part.length);
      given += part.length;
    }
    state = get_next_output(at);
    if (state > ENDED) throw new Error(`xz answers ${state}`);
    words = new Uint32Array(memory.buffer, at); // which may have grown
    yield new Uint8Array(memory.buffer, words[OUTPUT], words[MADE]).slice();
    words[MADE] = 0;
  }
}

/**
 * The bytes that book/page_compiler.py has packed, as they come.
 * @param {string[]} parts @param {string} decoder  of xz, packed itself; "" for gzip
 * @returns {Promise<ReadableStream<Uint8Array>>}
 */
export async function stream_of(parts, decoder) {
  const bytes = bytes_of(parts);
  if (bytes[0] === GZIP)
    return new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const program = await unpacked([decoder]),
    { instance } = await WebAssembly.instantiate(program);
  const given = pieces(bytes, instance);
  return new ReadableStream({
    pull(to) {
      const { value, done } = given.next();
      if (done) to.close();
      else to.enqueue(value);
    },
  });
}

/** All bytes of a stream_of. @param {string[]} parts */
export async function unpacked(parts, decoder = "") {
  const stream = await stream_of(parts, decoder);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
