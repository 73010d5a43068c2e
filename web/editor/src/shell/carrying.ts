/** What pictures are called while they are dragged: into nodes, or out of the page. */

/** Addresses of pictures of the server's, a line each. */
export const PICTURES = "application/x-katz-pictures";

const TYPES: Readonly<Record<string, string>> = {
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  png: "image/png",
  webp: "image/webp",
};

/** The name of a picture's file, without folders. */
export function nameIn(address: URL): string {
  return address.searchParams.get("filename")?.split("/").at(-1) || "picture";
}

/** What a drag of pictures carries, by type; `base` is the page's address. */
export function carried(
  addresses: readonly string[],
  base: string,
): Readonly<Record<string, string>> {
  const whole = addresses.map((address) => new URL(address, base));
  const [first] = whole;
  if (first === undefined) return {};
  const name = nameIn(first);
  const type = TYPES[name.split(".").at(-1)?.toLowerCase() ?? ""] ?? "application/octet-stream";
  return {
    [PICTURES]: addresses.join("\n"),
    "text/uri-list": whole.join("\r\n"),
    // Chromium makes a file of it where it is dropped outside of the browser
    DownloadURL: `${type}:${name.replaceAll(":", "_")}:${first}`,
  };
}

export function carryPictures(event: React.DragEvent, addresses: readonly string[]): void {
  for (const [type, what] of Object.entries(carried(addresses, document.baseURI)))
    event.dataTransfer.setData(type, what);
  event.dataTransfer.effectAllowed = "copy";
}
