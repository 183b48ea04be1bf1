# The command automutex, such as its page for operators:
#   docker build -t automutex .
#   docker run -p 8081:8081 -e AUTOMUTEX_URI=redis:6379 -e AUTOMUTEX_WEB_USER=ops -e AUTOMUTEX_WEB_PASSWORD=... automutex web --listen :8081
FROM golang:1.26 AS build
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 go build -C cmd/automutex -trimpath -ldflags=-s -o /automutex .

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /automutex /automutex
USER 65534:65534
ENTRYPOINT ["/automutex"]
