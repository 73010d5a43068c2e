/**
 * Reads messages of the server by the field names of their schema. Values are untyped, because a
 * server of another version may have sent them.
 */
import { isObject } from "../json";

type FieldOf<Message> = Message extends unknown ? keyof Message : never;

export type MessageFields<Message> = { readonly [Name in FieldOf<Message>]?: unknown };

/** Returns the fields of a message; none for other values. */
export function messageFields<Message>(value: unknown): MessageFields<Message> {
  return isObject(value) ? (value as MessageFields<Message>) : {};
}

/** Reads each message of a list. */
export function readMessages<Message, Read>(
  value: unknown,
  read: (message: MessageFields<Message>) => Read,
): readonly Read[] {
  return Array.isArray(value) ? value.map((one) => read(messageFields<Message>(one))) : [];
}
