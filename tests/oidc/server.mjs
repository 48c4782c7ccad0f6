// node server.mjs PORT CLIENT_SECRET REDIRECT_URI: a certified OpenID Connect provider with three people in it, any password.
import Provider from "oidc-provider";

const [port, secret, redirect] = process.argv.slice(2);
const people = {
  ann: { email: "ann@example.org", email_verified: true },
  eve: { email: "eve@example.org", email_verified: true },
  mallory: { email: "ann@example.org", email_verified: false },
};

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "poascope", client_secret: secret, redirect_uris: [redirect], post_logout_redirect_uris: [redirect] }],
  claims: { openid: ["sub"], email: ["email", "email_verified"] },
  conformIdTokenClaims: false, // the claims are in the ID token, where Streamlit looks for them
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
});
provider.listen(Number(port), "127.0.0.1");
