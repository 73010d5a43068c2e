/**
 * Reads messages of the server by the names of fields that its schema has. What stands in a field may
 * be anything: a server of another version may have sent it.
 */
import { isObject } from "../json";

type FieldOf<Message> = Message extends unknown ? keyof Message : never;

export type Told<Message> = { readonly [Name in FieldOf<Message>]?: unknown };

/** The fields of a message; none of what is no object. */
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
