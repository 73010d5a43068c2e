/** Defines the drag data of images, for drops on nodes or outside the page. */

/** Addresses of images on the server, one per line. */
export const IMAGES_TYPE = "application/x-katz-pictures";

const TYPES: Readonly<Record<string, string>> = {
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  png: "image/png",
  webp: "image/webp",
};

/** Returns the file name of an image, without folders. */
export function nameIn(address: URL): string {
  return address.searchParams.get("filename")?.split("/").at(-1) || "picture";
}

/** Returns the drag data of images by type. `base`: the page's address. */
export function imageDragData(
  addresses: readonly string[],
  base: string,
): Readonly<Record<string, string>> {
  const whole = addresses.map((address) => new URL(address, base));
  const [first] = whole;
  if (first === undefined) return {};
  const name = nameIn(first);
  const type = TYPES[name.split(".").at(-1)?.toLowerCase() ?? ""] ?? "application/octet-stream";
  return {
    [IMAGES_TYPE]: addresses.join("\n"),
    "text/uri-list": whole.join("\r\n"),
    // Chromium creates a file from this when it is dropped outside the browser
    DownloadURL: `${type}:${name.replaceAll(":", "_")}:${first}`,
  };
}

export function setImageDrag(event: React.DragEvent, addresses: readonly string[]): void {
  for (const [type, what] of Object.entries(imageDragData(addresses, document.baseURI)))
    event.dataTransfer.setData(type, what);
  event.dataTransfer.effectAllowed = "copy";
}
