/**
 * Evaluates expressions in number fields: `512*1.5`, `(64+8)/2`, `2^64-1`. Integers are exact until
 * a division has a remainder. `^` means `**`; a comma is a decimal point. A custom parser, without
 * eval.
 */

type Value = number | bigint;

const MAX_CHARACTERS = 200;
/** Powers with more bits are computed as floating-point numbers. */
const MAX_BITS = 256;
const TOKEN = /\s*(\*\*|[-+*/^()]|(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:e[+-]?\d+)?)\s*/iy;
const WHOLE = /^\d+$/;

/** Returns the value of an expression; null if it is invalid or not finite. */
export function evaluated(text: string): Value | null {
  const tokens = tokensOf(text);
  if (tokens === null) return null;
  const parser = new Parser(tokens);
  const value = parser.sum();
  return value === null || !parser.isAtEnd || !isFinite(Number(value)) ? null : value;
}

function tokensOf(text: string): readonly string[] | null {
  if (text.length > MAX_CHARACTERS) return null;
  const tokens: string[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const [, token] = TOKEN.exec(text) ?? [];
    if (token === undefined) return null;
    tokens.push(token);
  }
  return tokens;
}

/**
 * A recursive-descent parser with a method per level of precedence; each returns null on an error.
 */
class Parser {
  private at = 0;

  constructor(private readonly tokens: readonly string[]) {}

  get isAtEnd(): boolean {
    return this.at === this.tokens.length;
  }

  sum(): Value | null {
    return this.chain({ "+": plus, "-": minus }, () => this.product());
  }

  private product(): Value | null {
    return this.chain({ "*": times, "/": over }, () => this.signed());
  }

  private chain(
    operators: Readonly<Record<string, (one: Value, other: Value) => Value>>,
    operand: () => Value | null,
  ): Value | null {
    let value = operand();
    for (
      let operator = operators[this.next];
      value !== null && operator !== undefined;
      operator = operators[this.next]
    ) {
      this.at++;
      const other = operand();
      value = other === null ? null : operator(value, other);
    }
    return value;
  }

  private signed(): Value | null {
    if (this.take("+")) return this.signed();
    if (!this.take("-")) return this.power();
    const value = this.signed();
    return value === null ? null : -value;
  }

  /** Binds tighter than a sign before it, and to the right: `-2^2` is −4, `2^3^2` is 512. */
  private power(): Value | null {
    const base = this.atom();
    if (base === null || !(this.take("**") || this.take("^"))) return base;
    const exponent = this.signed();
    return exponent === null ? null : raised(base, exponent);
  }

  private atom(): Value | null {
    if (this.take("(")) {
      const value = this.sum();
      return this.take(")") ? value : null;
    }
    const token = this.next;
    if (!/^[\d.,]/.test(token)) return null;
    this.at++;
    return WHOLE.test(token) ? BigInt(token) : Number(token.replace(",", "."));
  }

  private get next(): string {
    return this.tokens[this.at] ?? "";
  }

  private take(token: string): boolean {
    const there = this.next === token;
    if (there) this.at++;
    return there;
  }
}

function plus(one: Value, other: Value): Value {
  return areWhole(one, other) ? BigInt(one) + BigInt(other) : Number(one) + Number(other);
}

function minus(one: Value, other: Value): Value {
  return plus(one, -other);
}

function times(one: Value, other: Value): Value {
  return areWhole(one, other) ? BigInt(one) * BigInt(other) : Number(one) * Number(other);
}

function over(one: Value, other: Value): Value {
  const divides = areWhole(one, other) && other !== 0n && BigInt(one) % BigInt(other) === 0n;
  return divides ? BigInt(one) / BigInt(other) : Number(one) / Number(other);
}

function raised(base: Value, exponent: Value): Value {
  const bits = typeof base === "bigint" ? base.toString(2).length * Number(exponent) : Infinity;
  const exact = areWhole(base, exponent) && Number(exponent) >= 0 && bits <= MAX_BITS;
  return exact ? BigInt(base) ** BigInt(exponent) : Number(base) ** Number(exponent);
}

function areWhole(one: Value, other: Value): boolean {
  return typeof one === "bigint" && typeof other === "bigint";
}
