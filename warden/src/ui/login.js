// The login form keeps the query string, so that a shared view opens, but removes a token from it.
{
  const base = location.pathname.replace(/\/(login)?$/, "");
  const given = new URLSearchParams(location.search);
  given.delete("token");
  const view = given.size ? `?${given}` : "";
  const form = document.querySelector("form");
  const refused = document.querySelector("#refused");
  form.action = `${base}/login${view}`;
  history.replaceState(null, "", `${base}/${view}`);

  // A navigation from another site (mail, chat) does not send the session cookie (SameSite=Strict); a request from this page
  // does.
  if (refused.hidden) {
    fetch(`${base}/machines`, { cache: "no-store", signal: AbortSignal.timeout(20000) }).then(
      (answer) => answer.ok && location.replace(`${base}/${view}`),
      () => {}, // Keep showing the form.
    );
  }

  // The page sends no referrer, so a plain form submission would have no Origin header. Over plain HTTP to another machine, a
  // browser sends nothing else that proves a same-origin form. A script's request has the header.
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form));
    let why = "No connection. Is the program running?";
    try {
      const response = await fetch(form.action, {
        method: "POST", body, redirect: "manual", cache: "no-store",
        headers: { accept: "application/json", "x-evenkeel-page": "1" }, signal: AbortSignal.timeout(20000),
      });
      // A successful login redirects. The redirect is not followed here, because the script cannot inspect it.
      if (response.type === "opaqueredirect") return location.replace(`${base}/${view}`);
      const answer = await response.json().catch(() => null);
      why = answer?.error ?? `The warden answered ${response.status}.`;
    } catch {
      // `why` already has the text.
    }
    refused.textContent = why;
    refused.hidden = false;
    form.reset();
    document.querySelector("#token").focus();
  });
}
