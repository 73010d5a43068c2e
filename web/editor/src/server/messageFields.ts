/**
 * Reads messages of the server by the field names of their schema. Values are untyped, because a
 * server of another version may have sent them.
 */
import { isObject } from "../json";

type FieldOf<Message> = Message extends unknown ? keyof Message : never;

export type Told<Message> = { readonly [Name in FieldOf<Message>]?: unknown };

/** Returns the fields of a message; none for other values. */
export function told<Message>(value: unknown): Told<Message> {
  return isObject(value) ? (value as Told<Message>) : {};
}

/** Reads each message of a list. */
export function toldAll<Message, Read>(
  value: unknown,
  read: (message: Told<Message>) => Read,
): readonly Read[] {
  return Array.isArray(value) ? value.map((one) => read(told<Message>(one))) : [];
}
