/** Requests the memory of the server and its devices. */
import { fieldsOf, isObject, listOf, numberFrom, textOf } from "../json";
import { asked } from "./client";

/** Memory in bytes. */
export interface Memory {
  readonly name: string;
  readonly total: number;
  readonly free: number;
}

export async function memories(): Promise<readonly Memory[]> {
  const { system, devices } = fieldsOf(await asked("system_stats"));
  const host = fieldsOf(system);
  return [
    ...listOf(devices)
      .filter(isObject)
      .map((device) => ({
        name: textOf(device.name),
        total: numberFrom(device.vram_total),
        free: numberFrom(device.vram_free),
      })),
    { name: "server", total: numberFrom(host.ram_total), free: numberFrom(host.ram_free) },
  ];
}
