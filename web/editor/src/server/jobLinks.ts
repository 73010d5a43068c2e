/** Builds the addresses of job pages on this server. */

/** Returns the address of a job's read-only page. */
export function jobLink(job: string): string {
  return new URL(`?job=${encodeURIComponent(job)}`, document.baseURI).href;
}

/** Returns the address that opens a copy of a job's workflow in the editor. */
export function copyLink(job: string): string {
  return new URL(`?copy=${encodeURIComponent(job)}`, document.baseURI).href;
}

/** Returns a parameter of this page's address. */
export function addressParameter(what: "job" | "copy"): string | null {
  return new URLSearchParams(location.search).get(what);
}
