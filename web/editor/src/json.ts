/** JSON whose whole numbers stay exact: beyond 2^53 they are bigint. */
import { parse, stringify } from "lossless-json";

export type Json = null | boolean | number | bigint | string | readonly Json[] | JsonObject;
export interface JsonObject {
  readonly [key: string]: Json;
}

const WHOLE = /^-?\d+$/;
/** A whole number that may be long; without it the browser's own reading, which takes a tenth of the time, loses nothing. */
const LONG = /(?:^|[:,[\s-])\d{16}/;

function numberOf(text: string): number | bigint {
  const value = Number(text);
  return WHOLE.test(text) && !Number.isSafeInteger(value) ? BigInt(text) : value;
}

/** Of two fields of one name the last holds, as in the browser's own. */
const EXACT = {
  parseNumber: numberOf,
  onDuplicateKey: ({ newValue }: { readonly newValue: unknown }) => newValue,
};

export function parseJson(text: string): Json {
  return (LONG.test(text) ? parse(text, undefined, EXACT) : JSON.parse(text)) as Json;
}

export function printJson(value: Json, indent?: number): string {
  return stringify(value, undefined, indent) ?? "null";
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The fields of an object; none of what is no object. */
export function fieldsOf(value: unknown): JsonObject {
  return isObject(value) ? value : {};
}

export function listOf(value: unknown): readonly Json[] {
  return Array.isArray(value) ? value : [];
}

export function textOf(value: unknown, otherwise = ""): string {
  return typeof value === "string" ? value : otherwise;
}

/** The texts of a list; what is no text is empty. */
export function textsOf(value: unknown): readonly string[] {
  return listOf(value).map((one) => textOf(one));
}

export function numberFrom(value: unknown, otherwise = 0): number {
  return typeof value === "number" ? value : typeof value === "bigint" ? Number(value) : otherwise;
}
